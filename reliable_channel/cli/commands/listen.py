"""``reliable-channel listen``: the messages of a reliable channel, as they are delivered."""

from __future__ import annotations

from typing import Annotated

import typer

from reliable_channel.cli.commands import MOST_SECONDS, read_settings
from reliable_channel.cli.commands.channel import (
    ChannelArgument,
    Database,
    KeyFiles,
    Sender,
    Topic,
    TransportName,
    print_event,
    printable,
)


def register(app: typer.Typer) -> None:
    @app.command()
    def listen(
        context: typer.Context,
        channel_id: ChannelArgument,
        count: Annotated[int | None, typer.Option(min=1, help="End after this many messages.")] = None,
        seconds: Annotated[
            float | None, typer.Option(min=0, max=MOST_SECONDS, help="End after this many seconds.")
        ] = None,
        everything: Annotated[bool, typer.Option("--events", help="All events, not only messages.")] = False,
        topic: Topic = None,
        sender: Sender = None,
        database: Database = None,
        key_files: KeyFiles = None,
        transport: TransportName = "kafka",
        as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
    ) -> None:
        """Print messages until Ctrl-C, --count or --seconds; exit 1 when --count was not reached in time, or the
        channel stopped, as on a full disk."""
        import threading

        from reliable_channel.channel import ChannelEvent, ChannelProblem, MessageLost, MessageReceived
        from reliable_channel.runtime.participant import ParticipantOptions, participant

        settings = read_settings(context)
        who = ParticipantOptions(channel_id, topic, sender, database, tuple(key_files or ()), transport)
        enough = threading.Event()
        received, failed = 0, False

        def tell(event: ChannelEvent) -> None:
            nonlocal received, failed
            received += isinstance(event, MessageReceived)
            if everything or isinstance(event, MessageReceived | MessageLost | ChannelProblem):
                print_event(event, as_json)
            if count is not None and received >= count and isinstance(event, MessageReceived):
                # In the callback, so that messages that came together with it wait for the next `listen`.
                opened.channel.close()
                enough.set()
            if isinstance(event, ChannelProblem) and event.kind == "stopped":
                failed = True
                enough.set()

        with participant(settings, who) as opened:
            opened.channel.on(ChannelEvent, tell)
            opened.start()
            if not as_json:
                where = f"{who.channel_id} ({who.topic}) as {opened.channel.sender_id}"
                typer.echo(printable(f"Listening on {where}"), err=True)
            enough.wait(seconds)
        if failed or (count is not None and received < count):
            raise typer.Exit(1)
