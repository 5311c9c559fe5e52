"""``reliable-channel rebuild``: every derived table again, from the recorded envelopes."""

from __future__ import annotations

from typing import Annotated

import typer

from reliable_channel.cli.commands import open_chain, read_settings


def register(app: typer.Typer) -> None:
    @app.command()
    def rebuild(
        context: typer.Context,
        data_dir: Annotated[
            str | None, typer.Option(help="Write the tables there and leave the old ones (object stores need it).")
        ] = None,
        checkpoint_dir: Annotated[str | None, typer.Option(help="With --data-dir: the new checkpoints.")] = None,
    ) -> None:
        """Derive every table again from the recorded envelopes, with new checkpoints. The jobs must be stopped."""
        from reliable_channel.config import PathSettings
        from reliable_channel.core.errors import LocalError
        from reliable_channel.pipeline.maintenance.rebuild import rebuild as run

        if (data_dir is None) != (checkpoint_dir is None):
            raise LocalError("--data-dir and --checkpoint-dir go together.", "Give both, or none.")
        settings = read_settings(context)
        target = None
        if data_dir is not None:
            directories = {"data_dir": data_dir, "checkpoint_dir": checkpoint_dir}
            target = PathSettings(**{**settings.paths.model_dump(), **directories})
        with open_chain(settings, "reliable-channel rebuild") as spark:
            done = run(spark, settings, target=target, say=lambda what: typer.echo(f"  {what}", err=True))
        typer.echo(f"Rebuilt from {done.envelopes:,} envelopes.")
        if done.old_tables:
            typer.echo(f"The old tables are in {done.old_tables}; delete them when you no longer need them.")
        if done.older_rows:
            typer.echo(
                f"{done.older_rows:,} rows of delivered_messages are older than the oldest envelope:"
                " only the old tables have them."
            )
