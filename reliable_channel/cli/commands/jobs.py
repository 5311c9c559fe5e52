"""``reliable-channel jobs``: the jobs for ``spark-submit`` that come with this package."""

from __future__ import annotations

from typing import Annotated

import typer

from reliable_channel.cli.commands import JsonOption, list_files, place_of


def register(app: typer.Typer) -> None:
    jobs = typer.Typer(help="The jobs for spark-submit.", no_args_is_help=True)
    app.add_typer(jobs, name="jobs")

    @jobs.callback()
    def _group() -> None:
        """The jobs for spark-submit."""

    @jobs.command("list")
    def list_(as_json: JsonOption = False) -> None:
        """The names of the jobs."""
        list_files("jobs", "[!_]*.py", as_json)

    @jobs.command()
    def path(name: Annotated[str, typer.Argument(help="Such as ingest; without: the folder.")] = "") -> None:
        """Print where a job is: ``spark-submit … "$(reliable-channel jobs path ingest)"``."""
        typer.echo(place_of("jobs", f"{name.removesuffix('.py')}.py" if name else ""))
