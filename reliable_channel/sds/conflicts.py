"""Two messages with one id (protocol.md §5 *Bounds*): who wins, and what the loser leaves."""

from __future__ import annotations

from reliable_channel.sds.events import Conflict, Event
from reliable_channel.sds.incoming import Waiting
from reliable_channel.sds.log import LogEntry
from reliable_channel.sds.state import ChannelState
from reliable_channel.sds.verify import id_is_recomputed
from reliable_channel.wire.sds import SdsMessage


def known_under(state: ChannelState, message_id: str) -> LogEntry | Waiting | None:
    """The message of that id that is here, in the log or waiting for what it depends on; never both."""
    return state.log.get(message_id) or state.incoming.waiting.get(message_id)


def second_wins(
    message: SdsMessage, known: LogEntry | Waiting, verified: bool | None, now: int, events: list[Event]
) -> bool:
    """Another message with a known id; whether it wins. Contents differ, so at most one of the two can have an id that
    is recomputed from them: it is enough to try the second. ``verified``: whether that is done already."""
    if verified is None:
        verified = id_is_recomputed(message)
    differs = [
        name
        for name, same in (
            ("sender", known.sender_id == message.sender_id),
            ("Lamport timestamp", known.lamport == message.lamport_timestamp),
        )
        if not same
    ] or ["content"]
    winner, why = ("second", "its id is recomputed") if verified else ("first", "the id of the second is not")
    why = f"another {' and '.join(differs)}; {why}"
    events.append(Conflict(now, message.message_id, message.sender_id, winner, why, message.content))
    return verified


def forget_loser(state: ChannelState, message_id: str) -> None:
    """Take out what a message that lost has left here."""
    state.log.remove(message_id)
    if message_id in state.incoming.waiting:
        state.incoming.take(message_id)
    state.review.untrack(message_id)
    if state.repair is not None:
        state.repair.forget(message_id)
