"""``reliable-channel notebooks``: the notebooks that come with this package."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from reliable_channel.cli.commands import files_of_package


def register(app: typer.Typer) -> None:
    @app.command()
    def notebooks(
        directory: Annotated[Path, typer.Argument(metavar="DIR", help="Made when it does not exist.")],
    ) -> None:
        """Copy the notebooks over the tables into a directory; existing ones are kept and named."""
        directory.mkdir(parents=True, exist_ok=True)
        for source in files_of_package():
            target = directory / source.name
            if source.suffix != ".ipynb":
                continue
            if target.exists():
                typer.echo(f"{target} already exists and was left unchanged", err=True)
                continue
            shutil.copyfile(source, target)
            typer.echo(target)
