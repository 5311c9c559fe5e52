"""``reliable-channel maintain``: retention, compaction and vacuum of the tables, while the streams run."""

from __future__ import annotations

from typing import Annotated

import typer

from reliable_channel.cli.commands import read_settings


def register(app: typer.Typer) -> None:
    @app.command()
    def maintain(
        context: typer.Context,
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done; change nothing.")] = False,
        table: Annotated[list[str] | None, typer.Option(help="Only this table; may be repeated.")] = None,
    ) -> None:
        """Delete expired rows, compact and order files, and remove files that no stream still needs.

        Exit codes: 0 done, 1 there are no such tables."""
        from reliable_channel.pipeline.maintenance.maintain import run

        run(read_settings(context), dry_run=dry_run, only=table or (), say=typer.echo)
