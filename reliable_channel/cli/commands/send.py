"""``reliable-channel send``: messages from arguments, files or standard input into a reliable channel."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
)

if TYPE_CHECKING:
    from reliable_channel.channel import ReliableChannel


def register(app: typer.Typer) -> None:
    @app.command()
    def send(
        context: typer.Context,
        channel_id: ChannelArgument,
        messages: Annotated[list[str] | None, typer.Argument(help="Texts to send, one message each.")] = None,
        files: Annotated[list[Path] | None, typer.Option("--file", help="A file to send; may be repeated.")] = None,
        stdin: Annotated[bool, typer.Option("--stdin", help="Standard input, whole, as one message.")] = False,
        lines: Annotated[bool, typer.Option("--lines", help="Standard input, one message a line.")] = False,
        ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Neither kept nor acknowledged.")] = False,
        wait: Annotated[
            Literal["queued", "sent", "delivered"],
            typer.Option(
                help="Until all are queued (in Kafka), sent (accepted by a node), or delivered (acknowledged)."
            ),
        ] = "sent",
        seconds: Annotated[
            float, typer.Option("--timeout", min=0, max=MOST_SECONDS, help="Seconds to wait at most.")
        ] = 60.0,
        topic: Topic = None,
        sender: Sender = None,
        database: Database = None,
        key_files: KeyFiles = None,
        transport: TransportName = "kafka",
        as_json: Annotated[bool, typer.Option("--json", help="Print events as JSON lines.")] = False,
    ) -> None:
        """Send messages reliably; exit 1 when one failed, or is not sent in time (it is kept for the next start; an
        ephemeral one is not)."""
        from reliable_channel.channel import (
            ChannelProblem,
            EphemeralMessageDropped,
            MessageDelivered,
            MessageDeliveryError,
            MessageSendError,
            MessageSent,
            SegmentQueued,
        )
        from reliable_channel.core.errors import ConfigurationError
        from reliable_channel.core.segmentation.splitting import check_size
        from reliable_channel.runtime.participant import ParticipantOptions, participant

        if stdin + lines + bool(messages or files) != 1:
            raise ConfigurationError("Nothing to send, or too many sources.", "Give texts, --file, --stdin or --lines.")
        settings = read_settings(context)
        who = ParticipantOptions(channel_id, topic, sender, database, tuple(key_files or ()), transport)
        payloads = _read_payloads(messages or [], files or [], stdin)
        for payload in payloads:
            check_size(payload, settings.segmentation)
        with participant(settings, who) as opened:
            shown = (MessageSent, MessageDelivered, MessageSendError, MessageDeliveryError, ChannelProblem)
            for kind in (*shown, SegmentQueued) if wait == "queued" else shown:
                opened.channel.on(kind, lambda event: print_event(event, as_json))
            dropped: list[EphemeralMessageDropped] = []
            opened.channel.on(EphemeralMessageDropped, dropped.append)
            opened.start()
            ids = [_send(opened.channel, payload, ephemeral) for payload in payloads]
            if lines:
                ids += [_send(opened.channel, line, ephemeral) for line in _read_lines()]
            if ephemeral:
                succeeded = _wait_until_dispatched(opened.channel, dropped, len(ids), seconds)
            else:
                succeeded = _wait_until_settled(opened.channel, ids, wait, seconds)
            if not succeeded:
                raise typer.Exit(1)


def _send(channel: ReliableChannel, payload: bytes, ephemeral: bool) -> str:
    return channel.send_ephemeral(payload) if ephemeral else channel.send(payload)


def _wait_until_dispatched(channel: ReliableChannel, dropped: Sized, sent: int, seconds: float) -> bool:
    """Whether the node takes all ephemeral messages in time; ``dropped`` grows meanwhile."""
    if not channel.flush(seconds):
        typer.echo("Not all ephemeral messages were sent in time; they are not kept.", err=True)
        return False
    if dropped:
        typer.echo(f"The rate limit dropped {len(dropped)} of {sent} ephemeral messages.", err=True)
    return not dropped


def _wait_until_settled(channel: ReliableChannel, ids: list[str], wait: str, seconds: float) -> bool:
    from reliable_channel.channel import SendState

    if not channel.wait(ids, delivered=wait == "delivered", queued=wait == "queued", timeout_s=seconds):
        states = [channel.send_state(one) for one in ids]
        left = sum(state in (SendState.SENDING, SendState.QUEUED, SendState.SENT) for state in states)
        typer.echo(f"{left} of {len(ids)} are stored and not finished; the next start continues.", err=True)
        if queued := states.count(SendState.QUEUED):
            typer.echo(
                f"{queued} are queued: no bridge has dispatched them, or the rate limit holds them back.", err=True
            )
        return False
    bad = {SendState.FAILED, SendState.UNACKNOWLEDGED} if wait == "delivered" else {SendState.FAILED}
    return all(channel.send_state(one) not in bad for one in ids)


def _read_payloads(messages: list[str], files: list[Path], stdin: bool) -> list[bytes]:
    import sys

    return [
        *(message.encode() for message in messages),
        *(_read_file(file) for file in files),
        *([sys.stdin.buffer.read()] if stdin else []),
    ]


def _read_file(file: Path) -> bytes:
    from reliable_channel.core.errors import ConfigurationError

    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {error.strerror}.", "Name a file.") from None


def _read_lines() -> Iterator[bytes]:
    """Lines of standard input as they arrive: a person may be typing them."""
    import sys

    for line in sys.stdin.buffer:
        if stripped := line.rstrip(b"\r\n"):
            yield stripped
