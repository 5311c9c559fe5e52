"""``reliable-channel dashboard``: the tables as live pages."""

from __future__ import annotations

from typing import Annotated

import typer

from reliable_channel.cli.commands import TablesOption, read_settings


def register(app: typer.Typer) -> None:
    @app.command()
    def dashboard(
        context: typer.Context,
        host: Annotated[str | None, typer.Option(help="Address to listen on; dashboard.host by default.")] = None,
        port: Annotated[int | None, typer.Option(help="Port, 0 for a free one; dashboard.port by default.")] = None,
        tables: TablesOption = None,
    ) -> None:
        """Show delivery, losses, channels, messages, quarantine and alerts in a browser, live. Needs no Spark."""
        from reliable_channel.analysis.dashboard.serve import serve

        settings = read_settings(context, tables)
        given = {name: value for name, value in {"host": host, "port": port}.items() if value is not None}
        changed = settings.dashboard.model_copy(update=given)
        serve(settings.model_copy(update={"dashboard": changed}), typer.echo)
