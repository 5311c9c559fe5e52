"""``reliable-channel requeue``: quarantined records once more, after a fix or with a key that came."""

from __future__ import annotations

from typing import Annotated

import typer

from reliable_channel.cli.commands import read_settings


def register(app: typer.Typer) -> None:
    @app.command()
    def requeue(
        context: typer.Context,
        reason: Annotated[
            list[str] | None, typer.Option(help="Only records with this reason (docs/quarantine.md); may be repeated.")
        ] = None,
    ) -> None:
        """Decode quarantined records again; those that can be decoded now are processed, exactly once.

        Exit codes: 0 done, 1 there are no tables."""
        from reliable_channel.analysis.text import pluralize
        from reliable_channel.core.errors import ConfigurationError
        from reliable_channel.core.wire.malformed import Reason
        from reliable_channel.lake.read import exists, no_tables_fault
        from reliable_channel.lake.tables import QUARANTINE
        from reliable_channel.pipeline.ingest.requeue import requeue as run
        from reliable_channel.runtime.spark import spark_session

        unknown = set(reason or ()) - {known.value for known in Reason}
        if unknown:
            raise ConfigurationError(f"No such reason: {', '.join(sorted(unknown))}.", "docs/quarantine.md lists them.")
        settings = read_settings(context)
        if not exists(settings.paths, QUARANTINE):
            raise no_tables_fault(settings.paths.data_dir)
        typer.echo("Starting Spark …", err=True)
        with spark_session(settings) as spark:
            count = run(spark, settings, reason or ())
        typer.echo(
            f"{pluralize(count, 'records')} can be decoded now" + ("; the next run processes them." if count else ".")
        )
