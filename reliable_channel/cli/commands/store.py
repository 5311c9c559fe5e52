"""``reliable-channel store serve``: the history in the ``envelopes`` table, for every client of Waku Store v3."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from reliable_channel.cli.commands import TablesOption, read_settings


def register(app: typer.Typer) -> None:
    store = typer.Typer(help="A Waku store over the tables.", no_args_is_help=True)
    app.add_typer(store, name="store")

    @store.command()
    def serve(
        context: typer.Context,
        host: Annotated[str | None, typer.Option(help="Address to listen on; store.server.host by default.")] = None,
        port: Annotated[int | None, typer.Option(help="Port, 0 for a free one; store.server.port by default.")] = None,
        tables: TablesOption = None,
    ) -> None:
        """Answer GET /store/v3/messages from the envelopes table until Ctrl-C or SIGTERM. Needs no Spark."""
        from pathlib import Path

        from reliable_channel import __version__
        from reliable_channel.evidence.delta_source import DeltaSource
        from reliable_channel.transport.http.guard import LOOPBACK_NAMES, allowed_hosts
        from reliable_channel.transport.http.server import HttpServer, listen, url_of
        from reliable_channel.transport.store.server import create_app

        settings = read_settings(context, tables)
        server_settings = settings.store.server
        host = host if host is not None else server_settings.host
        port = port if port is not None else server_settings.port
        loopback = host in LOOPBACK_NAMES
        hosts = allowed_hosts(server_settings.allowed_hosts) if loopback or server_settings.allowed_hosts else None
        index = Path(settings.paths.run_dir) / "store-index.sqlite"
        if not loopback:
            typer.echo(f"Warning: {host} is not loopback, and a store has no authentication.", err=True)
        with closing(DeltaSource(settings.paths.table("envelopes"), index)) as source, listen(host, port) as sock:
            # Answers 503 with the progress until the index is complete; /health says the same.
            source.follow(server_settings.refresh_ms / 1000)
            url = f"{url_of(host, sock)}/store/v3/messages"
            typer.echo(f"Store v3 of {settings.paths.table('envelopes')} at {url}")
            HttpServer(create_app(source, hosts, __version__)).run(sockets=[sock])
