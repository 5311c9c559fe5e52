"""Decides which of two messages with one id is kept, and removes everything that the channel derived from the other
(docs/sds.md, *Two messages with one id*)."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from reliable_channel.core.sds.events import Conflict, SdsEvent
from reliable_channel.core.sds.incoming import Waiting
from reliable_channel.core.sds.keys import SendKey
from reliable_channel.core.sds.log import LogEntry
from reliable_channel.core.sds.state import ChannelState
from reliable_channel.core.sds.verify import id_is_recomputed
from reliable_channel.core.wire.sds import SdsMessage


class Relation(StrEnum):
    """How a second message with a known id relates to the first."""

    NEW = "new"
    """Its id is not known."""
    COPY = "copy"
    """The same send: the same sender, Lamport timestamp and content."""
    FURTHER_SEND = "further send"
    """Equal content from another sender, or sent again: one SDS message, but a separate message to applications."""
    LOSER = "loser"
    """A conflict; the first message is kept."""
    WINNER = "winner"
    """A conflict; the second message replaces the first."""


NEW, COPY, FURTHER_SEND, LOSER, WINNER = Relation
"""Looked up once, because access to an enumeration member costs as much as three function calls."""


def find_known(state: ChannelState, message_id: str) -> LogEntry | Waiting | None:
    """The message with this id: in the log, else waiting for its dependencies, else unproven."""
    return find_id_owner(state, message_id) or state.unproven.get(message_id)


def find_id_owner(state: ChannelState, message_id: str) -> LogEntry | Waiting | None:
    """The message that owns an id here: in the log, or waiting for its dependencies."""
    return state.log.get(message_id) or state.incoming.waiting.get(message_id)


def is_content_hash(message_id: str, digest: bytes) -> bool:
    """Whether an id is the SHA-256 of its content. ``digest``: the first bytes of that SHA-256."""
    return len(message_id) == 64 and bool(digest) and message_id.startswith(digest.hex())


def relation(
    state: ChannelState,
    message: SdsMessage,
    digest: bytes,
    known: LogEntry | Waiting | None,
    verified: bool | None,
    now: int,
    events: list[SdsEvent],
) -> Relation:
    """Classify a message whose id may be known, and report a conflict.

    ``verified``: whether its id is recomputed from it; ``None``: check here, if it matters. The pipeline checks during
    ingest and a participant here, with the same function. ``digest`` is that of its content."""
    if is_held(state, message, digest):
        return COPY
    if known is None:
        return NEW
    equal = known.digest == digest and bool(digest)
    # js-waku: "ok" of one user and "ok" of another have one id, and so have two of the same user.
    if equal and is_content_hash(message.message_id, digest):
        return FURTHER_SEND
    if verified is None:  # recomputing takes up to 3 MiB of hashing: only where it decides something
        verified = id_is_recomputed(message)
    # If it is recomputed from both sends, or from neither, nothing binds it to one of them. LIP-173 hashes the content
    # alone as js-waku does, by another function.
    if equal and bool(verified) == _is_verified(message, known):
        return FURTHER_SEND
    # Of two sends, an id that binds sender and Lamport timestamp is recomputed from one. A message that has won once
    # stays: two that can both be recomputed would replace each other for ever (docs/spec/sds.md, *Bounds*).
    wins = verified and not known.won
    if wins and state.log.may_have_forgotten((message.lamport_timestamp or 0, message.message_id), message.sender_id):
        return NEW  # and too old: it may have been delivered before the other one came
    report_conflict(message, known, wins, now, events)
    return WINNER if wins else LOSER


def is_held(state: ChannelState, message: SdsMessage, digest: bytes) -> bool:
    """Whether exactly this send is known: in the log, waiting, or among the remembered further sends."""
    message_id, sender_id, lamport = message.message_id, message.sender_id, message.lamport_timestamp or 0
    waiting = state.incoming.waiting
    for held in (
        state.log.get(message_id),
        waiting.get(message_id),
        waiting.get(SendKey(message_id, sender_id, lamport)),
        state.unproven.get(message_id),
    ):
        if held is not None and (held.digest, held.lamport, held.sender_id) == (digest, lamport, sender_id):
            return True
    return (lamport, message_id, sender_id) in state.repeats


def find_copy(state: ChannelState, message: SdsMessage, digest: bytes) -> Waiting | None:
    """The message in the incoming buffer of which ``message`` is a copy."""
    lamport = message.lamport_timestamp or 0
    for key in (message.message_id, SendKey(message.message_id, message.sender_id, lamport)):
        held = state.incoming.waiting.get(key)
        if held is not None and (held.digest, held.lamport, held.sender_id) == (digest, lamport, message.sender_id):
            return held
    return None


def _is_verified(message: SdsMessage, known: LogEntry | Waiting) -> bool:
    """Whether the id of the known message is recomputed from it: its content equals that of ``message``."""
    if known.verified or not message.content:
        return known.verified
    return id_is_recomputed(replace(message, sender_id=known.sender_id, lamport_timestamp=known.lamport))


def report_conflict(
    message: SdsMessage, known: LogEntry | Waiting, wins: bool, now: int, events: list[SdsEvent]
) -> None:
    """Report a second message with a known id, and whether it ``wins``."""
    differs = [
        name
        for name, same in (
            ("sender", known.sender_id == message.sender_id),
            ("Lamport timestamp", known.lamport == message.lamport_timestamp),
        )
        if not same
    ] or ["content"]
    if wins:
        winner, why = "second", "its id is recomputed"
    elif known.won:
        winner, why = "first", "it has replaced another one before"
    else:
        winner, why = "first", "the id of the second is not recomputed"
    why = f"another {' and '.join(differs)}; {why}"
    events.append(Conflict(now, message.message_id, message.sender_id, winner, why, message.content))


def forget_loser(state: ChannelState, message_id: str) -> None:
    """Remove the state derived from a message that lost a conflict."""
    state.log.remove(message_id)
    state.unproven.take(message_id)
    waiting = state.incoming.waiting
    for key in [key for key, held in waiting.items() if held.sds_id == message_id]:
        state.incoming.take(key)
    state.review.untrack(message_id)
    if state.repair is not None:
        state.repair.forget(message_id)
