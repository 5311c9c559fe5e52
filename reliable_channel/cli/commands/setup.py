"""``reliable-channel setup``: the JVM parts, once; ``reliable-channel jars``: their places for ``spark-submit``."""

from __future__ import annotations

import typer

from reliable_channel.cli.commands import JsonOption, read_settings


def register(app: typer.Typer) -> None:
    @app.command()
    def setup(context: typer.Context) -> None:
        """Download and verify the jars of Spark's sources and of the broker into the cache; once per machine."""
        from reliable_channel.runtime import jars

        paths = read_settings(context).paths
        typer.echo(f"Jars verified in {jars.ensure(paths.cache_dir, paths.ivy_settings)}")

    @app.command("jars")
    def jars_(context: typer.Context, as_json: JsonOption = False) -> None:
        """Print the jars that Spark needs, comma separated.

        For example: spark-submit --jars "$(reliable-channel jars)" jobs/ingest.py"""
        import json

        from reliable_channel.runtime import jars

        cache_dir = read_settings(context).paths.cache_dir
        paths = [str(jar) for jar in jars.paths("spark", cache_dir)]
        typer.echo(json.dumps(paths, indent=1) if as_json else ",".join(paths))
