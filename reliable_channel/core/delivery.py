"""Decides when a rebuilt message is delivered: as soon as SDS has delivered enough of its segments to rebuild it, k of
the k + m (docs/spec/segmentation.md). The participant and the ack job share this code.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)
PartT = TypeVar("PartT", bound=Hashable)
MessageT = TypeVar("MessageT")
DeliveredT = TypeVar("DeliveredT")

NOTE_CHARACTERS = 2_048
"""The ids that are kept with a segment of those it names, and of those that were lost: 30 of 64 characters, more than a
sender of any implementation names. A stranger's history may fill an envelope, and nothing else bounds the bytes of the
segments that wait for the others of their messages."""


def keep_newest(ids: tuple[str, ...]) -> tuple[str, ...]:
    """The last of these ids, as many as have :data:`NOTE_CHARACTERS`."""
    size = 0
    for count, one in enumerate(reversed(ids)):
        size += len(one)
        if size > NOTE_CHARACTERS:
            return ids[len(ids) - count :]
    return ids


@dataclass(slots=True)
class _Awaited(Generic[PartT, MessageT]):
    message: MessageT
    required: int
    parts: dict[PartT, None] = field(default_factory=dict)
    lacking: int = 0
    """A lower bound of how many more parts must be delivered. Until then they are not counted again."""


class AwaitedMessages(Generic[KeyT, PartT, MessageT, DeliveredT]):
    """The rebuilt messages of a channel that SDS has not delivered yet, in insertion order.

    A part names a segment. ``delivered(part, message)`` returns what SDS delivered as this segment of this message, or
    ``None`` if nothing was delivered yet. A segment that another sender published under the same id does not count.
    """

    def __init__(self, delivered: Callable[[PartT, MessageT], DeliveredT | None]) -> None:
        self._delivered = delivered
        self._awaited: dict[KeyT, _Awaited[PartT, MessageT]] = {}
        self._by_part: dict[PartT, list[KeyT]] = {}

    def __len__(self) -> int:
        return len(self._awaited)

    def __contains__(self, key: KeyT) -> bool:
        return key in self._awaited

    def __getitem__(self, key: KeyT) -> MessageT:
        return self._awaited[key].message

    def items(self) -> Iterator[tuple[KeyT, MessageT]]:
        """The keys and messages, oldest first."""
        return ((key, awaited.message) for key, awaited in self._awaited.items())

    def awaits(self, part: PartT) -> bool:
        """Whether a message here has this part."""
        return part in self._by_part

    def find_by_part(self, part: PartT) -> tuple[KeyT, ...]:
        """The keys of the messages here that have this part."""
        return tuple(self._by_part.get(part, ()))

    def add(self, key: KeyT, message: MessageT, parts: Iterable[PartT], required: int) -> None:
        """Await a message until ``required`` of its parts are delivered; replaces a message with the same key."""
        if key in self._awaited:
            self.remove(key)
        self._awaited[key] = _Awaited(message, required)
        for part in parts:
            self.add_part(key, part)

    def add_part(self, key: KeyT, part: PartT) -> None:
        """Add a part that was encoded again from the rebuilt payload of a message."""
        awaited = self._awaited[key]
        if part not in awaited.parts:
            awaited.parts[part] = None
            awaited.lacking -= 1  # this part may have been delivered already
            self._by_part.setdefault(part, []).append(key)

    def remove(self, key: KeyT) -> MessageT:
        """Stop awaiting a message."""
        awaited = self._awaited.pop(key)
        for part in awaited.parts:
            keys = self._by_part[part]
            keys.remove(key)
            if not keys:
                del self._by_part[part]
        return awaited.message

    def clear(self) -> None:
        """Stop awaiting all messages."""
        self._awaited.clear()
        self._by_part.clear()

    def take(self, key: KeyT) -> list[DeliveredT] | None:
        """If enough parts of a message are delivered, return them and stop awaiting it; else return ``None``."""
        awaited = self._awaited[key]
        delivered = [one for part in awaited.parts if (one := self._delivered(part, awaited.message)) is not None]
        if len(delivered) < awaited.required:
            awaited.lacking = awaited.required - len(delivered)
            return None
        self.remove(key)
        return delivered

    def take_with(self, part: PartT) -> Iterator[tuple[KeyT, MessageT, list[DeliveredT]]]:
        """Process the delivery of a part by SDS; yields the messages that it completes, each with its delivered
        parts."""
        for key in list(self._by_part.get(part, ())):
            awaited = self._awaited[key]
            if self._delivered(part, awaited.message) is None:
                continue
            awaited.lacking -= 1
            if awaited.lacking <= 0 and (delivered := self.take(key)) is not None:
                yield key, awaited.message, delivered
