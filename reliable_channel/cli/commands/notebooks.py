"""``reliable-channel notebooks``: the notebooks that come with this package."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from reliable_channel.cli.commands import JsonOption, list_files, place_of


def register(app: typer.Typer) -> None:
    notebooks = typer.Typer(help="Notebooks over the tables.", no_args_is_help=True)
    app.add_typer(notebooks, name="notebooks")

    @notebooks.callback()
    def _group() -> None:
        """Notebooks over the tables."""

    @notebooks.command("list")
    def list_(as_json: JsonOption = False) -> None:
        """The names of the notebooks."""
        list_files("notebooks", "*.ipynb", as_json)

    @notebooks.command()
    def copy(place: Annotated[Path, typer.Argument(metavar="DIR", help="Made when it does not exist.")]) -> None:
        """Copy the notebooks into a directory; existing ones are kept and named."""
        place.mkdir(parents=True, exist_ok=True)
        for source in sorted(place_of("notebooks").glob("*.ipynb")):
            target = place / source.name
            if target.exists():
                typer.echo(f"{target} already exists and was left unchanged", err=True)
                continue
            shutil.copyfile(source, target)
            typer.echo(target)
