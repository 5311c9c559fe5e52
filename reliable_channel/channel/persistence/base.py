"""Defines the persistence protocol: per channel, a snapshot and the journal of inputs since.

A channel is a deterministic state machine, so only the *input* of a step must be stored. Appending it costs what the
input costs, while a snapshot per step would cost the whole history. A snapshot occasionally replaces the journal.

This order makes SIGKILL harmless at any point:

1. ``append`` the inputs of a step, in one transaction;
2. only then dispatch what the step wants sent: no id or clock value leaves the process before it is kept;
3. call the application; ``mark_reported`` records every message right after its callbacks return, and events about
   sends at the end of the step.

So a restart repeats sends that may not have happened (receivers recognise them by their ids). It reports again, marked
``redelivered``, every event without such a record: none is lost, and at most one finished callback is repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class ChannelKey:
    """Identifies one sender's state of one channel. Channels of the same id on other topics are other channels."""

    pubsub_topic: str
    content_topic: str
    channel_id: str
    sender_id: str


@dataclass(frozen=True, slots=True)
class StoredChannel:
    """What is stored of a channel: ``snapshot`` (``None``: never taken), the journal since, the keys of the events
    reported since, and the sequence number of the last message reported. ``fingerprint`` is the configuration under
    which the journal was written."""

    snapshot: bytes | None = None
    journal: tuple[bytes, ...] = ()
    reported: frozenset[str] = frozenset()
    sequence: int = 0
    fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class LabelledSend:
    """A send that the application named, such as by the id of a table's row: the same label is never sent as another
    message. ``segments`` are its SDS messages (bytes) as they were dispatched; ``required`` of them rebuild it.
    ``delivered``: it was acknowledged, also if the channel no longer knows the send."""

    label: str
    send_id: str
    required: int
    segments: tuple[bytes, ...]
    delivered: bool = False


@runtime_checkable
class Persistence(Protocol):
    """A backend. Every method is one atomic transaction. Thread-safe."""

    def acquire(self, sender_id: str, key: ChannelKey | None = None) -> Callable[[], None]:
        """Lock a sender in this database for this process, and one of its channels for the caller; returns the release,
        harmless when called twice. Raises ``SenderLocked`` while another process, or another open backend, holds the
        sender, or while the channel is locked in this process. The lock ends with its process."""

    def sender_id(self) -> str:
        """The sender id of this database: created at the first call and permanent."""

    def load(self, key: ChannelKey) -> StoredChannel:
        """Load what is stored of a channel; an empty :class:`StoredChannel` when nothing is."""

    def append(
        self,
        key: ChannelKey,
        entries: Sequence[bytes],
        fingerprint: str,
        labelled: LabelledSend | None = None,
        delivered: Sequence[str] = (),
    ) -> None:
        """Add the inputs of one step to the journal, in order, the name of the send among them, and the ids of the
        sends that they deliver."""

    def forget_label(self, key: ChannelKey, label: str) -> None:
        """Forget a label and its segments; unknown ones are ignored."""

    def find_send(self, key: ChannelKey, label: str) -> LabelledSend | None:
        """The send of that label, in whatever state."""

    def compact(self, key: ChannelKey, snapshot: bytes, fingerprint: str) -> None:
        """Replace the journal and the keys of reported events by a snapshot."""

    def mark_reported(self, key: ChannelKey, events: Sequence[str], sequence: int) -> None:
        """Record that these events, and messages up to number ``sequence``, were reported to the application."""

    def put_segments(self, key: ChannelKey, payloads: Mapping[int, bytes]) -> None:
        """Store payloads of segments by number; a number that is there is replaced."""

    def segments(self, key: ChannelKey, numbers: Collection[int]) -> dict[int, bytes]:
        """The stored payloads of these numbers."""

    def keep_segments(self, key: ChannelKey, numbers: Collection[int]) -> None:
        """Remove the stored payloads of all other numbers."""

    def get(self, name: str) -> bytes | None:
        """A small value of the node, such as the rate limit's count."""

    def put(self, name: str, value: bytes) -> None:
        """Keep a small value of the node."""

    def close(self) -> None:
        """Release everything. May be called twice."""


class ParkedSegments:
    """The payloads of one channel. ``read_only``: what is put stays in memory, for a look at a channel that somebody
    else may use."""

    def __init__(self, persistence: Persistence, key: ChannelKey, *, read_only: bool = False) -> None:
        self._persistence = persistence
        self._key = key
        self._own: dict[int, bytes] | None = {} if read_only else None

    def put(self, payloads: Mapping[int, bytes]) -> None:
        """Store payloads by number."""
        if self._own is not None:
            self._own.update(payloads)
        else:
            self._persistence.put_segments(self._key, payloads)

    def get(self, numbers: Collection[int]) -> Mapping[int, bytes]:
        """The payloads of these numbers."""
        own = {number: self._own[number] for number in numbers if self._own is not None and number in self._own}
        return own | self._persistence.segments(self._key, [number for number in numbers if number not in own])

    def keep(self, numbers: Collection[int]) -> None:
        """Remove all other payloads."""
        if self._own is None:
            self._persistence.keep_segments(self._key, numbers)
