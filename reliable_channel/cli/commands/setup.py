"""``reliable-channel setup``: the JVM parts, once; ``reliable-channel jars``: their places for ``spark-submit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reliable_channel.cli.commands import JsonOption, read_settings


def register(app: typer.Typer) -> None:
    @app.command()
    def setup(
        context: typer.Context,
        record: Annotated[
            Path | None, typer.Option(help="For maintainers: resolve again and write the checksums to this file.")
        ] = None,
    ) -> None:
        """Download and verify the jars of Spark's sources and of the broker into the cache; once per machine."""
        from reliable_channel.runtime import jars

        paths = read_settings(context).paths
        if record is not None:
            count = jars.record(record, paths.ivy_settings)
            typer.echo(f"{count} checksums written to {record}")
        else:
            home = jars.ensure(paths.cache_dir, paths.ivy_settings)
            typer.echo(f"Jars verified in {home}")

    @app.command("jars")
    def jars_(context: typer.Context, as_json: JsonOption = False) -> None:
        """Print the jars that Spark needs, comma separated.

        For example: spark-submit --jars "$(reliable-channel jars)" jobs/ingest.py"""
        import json

        from reliable_channel.runtime import jars

        cache_dir = read_settings(context).paths.cache_dir
        paths = [str(jar) for jar in jars.paths("spark", cache_dir)]
        typer.echo(json.dumps(paths, indent=1) if as_json else ",".join(paths))
