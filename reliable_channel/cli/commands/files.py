"""``reliable-channel files``: the jobs, notebooks and configurations that come with this package."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from reliable_channel.cli.commands import JsonOption, files_of_package


def register(app: typer.Typer) -> None:
    @app.command()
    def files(
        name: Annotated[str, typer.Argument(help="Such as ingest.py, grafana-dashboard.json; without: all.")] = "",
        as_json: JsonOption = False,
    ) -> None:
        """Print where a file is that comes with this package: a job for spark-submit, a notebook, a configuration.

        For example: spark-submit … "$(reliable-channel files ingest.py)"
        """
        from reliable_channel.core.errors import LocalError

        chosen = [file for file in files_of_package() if name in ("", file.name)]
        if not chosen:
            raise LocalError(f"There is no file {name[:80]!r}.", "`reliable-channel files` lists those there are.")
        if as_json:
            typer.echo(json.dumps([{"name": file.name, "path": str(file)} for file in chosen], indent=1))
        else:
            typer.echo("\n".join(map(str, chosen)))
