"""``reliable-channel channel status``, and what ``send`` and ``listen`` share with it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from reliable_channel.cli.commands import read_settings
from reliable_channel.core.printable import escape_unprintable

if TYPE_CHECKING:
    from reliable_channel.channel import ChannelEvent

ChannelArgument = Annotated[str, typer.Argument(help="The channel's id.", show_default=False)]
Topic = Annotated[str | None, typer.Option(help="Content topic.", show_default="/reliable-channel/1/<channel>/proto")]
Sender = Annotated[str | None, typer.Option(help="Sender id.", show_default="the database's own")]
Database = Annotated[Path | None, typer.Option(help="State file.", show_default="channel.sqlite in the run directory")]
KeyFiles = Annotated[
    list[Path] | None,
    typer.Option("--key-file", help="AES-GCM key (64 hex digits); repeat for rotation, newest first."),
]
TransportName = Annotated[Literal["kafka", "waku-rest"], typer.Option(help="Through Kafka, or directly to the node.")]


def register(app: typer.Typer) -> None:
    channel = typer.Typer(help="Reliable channels of this machine.", no_args_is_help=True)
    app.add_typer(channel, name="channel")

    @channel.command()
    def status(
        context: typer.Context,
        channel_id: ChannelArgument,
        topic: Topic = None,
        sender: Sender = None,
        database: Database = None,
        key_files: KeyFiles = None,
        as_json: Annotated[bool, typer.Option("--json", help="One JSON document a channel.")] = False,
    ) -> None:
        """Show the stored state of a channel, from its database alone; exit 3 when there is none."""
        import json
        from dataclasses import replace

        from reliable_channel.channel import SenderLocked, SqlitePersistence, inspect_channel
        from reliable_channel.runtime.participant import ParticipantOptions, channel_config, channel_keys

        settings = read_settings(context)
        who = ParticipantOptions(channel_id, topic, sender, database, tuple(key_files or ()))
        shown = 0
        if who.database_path(settings).exists():
            with closing(SqlitePersistence(who.database_path(settings))) as persistence:
                for key in channel_keys(who, persistence):
                    shown += 1
                    here = replace(who, content_topic=key.content_topic)
                    numbers = inspect_channel(key, channel_config(settings, here, persistence), persistence)
                    try:
                        persistence.acquire(key.sender_id)()  # and release it
                        numbers["in_use"] = False
                    except SenderLocked:
                        numbers["in_use"] = True
                    typer.echo(json.dumps(numbers) if as_json else _format_numbers(numbers))
        if not shown:
            place = who.database_path(settings)
            typer.echo(printable(f"Nothing is stored of channel {channel_id} in {place}"), err=True)
            raise typer.Exit(3)


def _format_numbers(numbers: dict[str, object]) -> str:
    return "\n".join(f"{name.replace('_', ' '):>24}  {printable(_word(value))}" for name, value in numbers.items())


def _word(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{n} {word}" for word, n in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(value)


def print_event(event: ChannelEvent, as_json: bool) -> None:
    """Print one event: a JSON line, or text. Only the text of a message may have several lines, all but the first of
    them indented: none can look like a message of somebody else."""
    import json

    from reliable_channel.channel import ChannelProblem, MessageLost, MessageReceived

    plain = event.as_dict()
    if isinstance(event, MessageReceived):
        plain["text"] = event.message.decode("utf-8", "replace")
    if as_json:
        typer.echo(json.dumps(plain))
    elif isinstance(event, MessageReceived):
        text = "\n  ".join(map(printable, plain["text"].split("\n")))
        typer.echo(f"{printable(event.sender_id)}: {text}")
    elif isinstance(event, ChannelProblem):
        typer.echo(f"{event.kind}: {printable(event.detail)}", err=True)
    elif isinstance(event, MessageLost):
        total = "an unknown number" if event.data_count is None else event.data_count
        why = f"{event.reason}: {len(event.held)} segments of {total} arrived"
        typer.echo(f"lost: message {event.message_id[:16]}… of {printable(event.sender_id)} ({why})", err=True)
    else:
        which = plain.get("request_id") or plain.get("sds_id") or ""
        error = f": {printable(str(plain['error']))}" if "error" in plain else ""
        typer.echo(f"{event.name} {which}{error}")


def printable(text: str) -> str:
    """Untrusted text on one line of a terminal: control characters are shown as escapes. Unlike
    :func:`reliable_channel.analysis.text.printable` it is whole, with its tabs and backslashes."""
    return escape_unprintable(text, kept="\t")
