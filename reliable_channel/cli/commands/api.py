"""``reliable-channel api serve``: the Messaging API and the reliable channel over HTTP."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from reliable_channel.cli.commands import read_settings


def register(app: typer.Typer) -> None:
    api = typer.Typer(help="The Messaging API over HTTP.", no_args_is_help=True)
    app.add_typer(api, name="api")

    @api.command()
    def serve(
        context: typer.Context,
        host: Annotated[str | None, typer.Option(help="Address to listen on; api.host by default.")] = None,
        port: Annotated[int | None, typer.Option(help="Port, 0 for a free one; api.port by default.")] = None,
        transport: Annotated[
            Literal["kafka", "waku-rest"] | None, typer.Option(help="api.transport by default.")
        ] = None,
    ) -> None:
        """Send, receive and track messages over HTTP until Ctrl-C or SIGTERM. See docs/messaging.md."""
        from reliable_channel.runtime.messaging import serve_api

        settings = read_settings(context)
        changes = {"host": host, "port": port, "transport": transport}
        given = {name: value for name, value in changes.items() if value is not None}
        settings = settings.model_copy(update={"api": settings.api.model_copy(update=given)})
        serve_api(settings, typer.echo)
