"""``reliable-channel maintain``: retention, OPTIMIZE and VACUUM of the tables, with the streams running on."""

from __future__ import annotations

from typing import Annotated

import typer

from reliable_channel.commands import invocation


def register(app: typer.Typer) -> None:
    @app.command()
    def maintain(
        context: typer.Context,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")] = False,
        table: Annotated[list[str] | None, typer.Option(help="Only this table; may be repeated.")] = None,
    ) -> None:
        """Delete expired rows, compact and cluster files, and remove files that no stream has still to read."""
        from reliable_channel.pipeline.operations.maintain import run
        from reliable_channel.runtime.spark import spark_session

        settings = invocation(context).settings()
        typer.echo("Starting Spark …", err=True)
        with spark_session(settings, "reliable-channel maintain") as spark:
            if not run(spark, settings, dry_run=dry_run, only=table or (), say=typer.echo):
                typer.echo(f"There are no tables under {settings.paths.data_dir} yet.")
