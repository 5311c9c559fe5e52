"""Remembers up to where a bounded memory may have forgotten messages: of each sender, so that nobody's messages count
as old because of others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from reliable_channel.core.shares import size_of
from reliable_channel.core.wire._pb import sds_state_pb2 as pb

if TYPE_CHECKING:
    from google.protobuf.internal.containers import RepeatedCompositeFieldContainer

Position = tuple[int, str]
"""Lamport timestamp and SDS id."""

MAX_HORIZONS = 1_000
"""Senders with their own horizon; beyond this number, the lowest horizons are merged into one for all senders."""


class Horizons:
    """The highest positions that may have been forgotten. Bounded in number and bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self.common: Position | None = None
        """That of any sender without its own horizon."""
        self.of: dict[str, Position] = {}
        """Read-only for other modules."""

    def advance(self, sender_id: str, position: Position, now: int) -> None:
        """Record that a message of ``sender_id`` was forgotten at ``now`` (ms)."""
        # One in the future would refuse what its sender sends until then, and anybody may send in its name, dated
        # ahead.
        position = min(position, (now, ""))
        if (before := self.of.get(sender_id)) is None or before < position:
            self._set(sender_id, position)

    def _set(self, sender_id: str, position: Position) -> None:
        if (before := self.of.get(sender_id)) is not None:
            self._bytes -= size_of(sender_id, before[1])
        self.of[sender_id] = position
        self._bytes += size_of(sender_id, position[1])

    def covers(self, position: Position, sender_id: str | None = None) -> bool:
        """Whether a message with this position and sender may have been forgotten. ``None``: any sender."""
        if self.common is not None and position <= self.common:
            return True
        if sender_id is None:
            return any(position <= horizon for horizon in self.of.values())
        horizon = self.of.get(sender_id)
        return horizon is not None and position <= horizon

    def limit(self) -> None:
        """Merge the lowest horizons of single senders that exceed a bound into the one for all senders."""
        if self._is_within_bounds():
            return
        # The lowest first: one for all senders that is too high would refuse honest messages of silent senders.
        for sender_id in sorted(self.of, key=self.of.__getitem__):
            if self._is_within_bounds():
                return
            position = self.of.pop(sender_id)
            self._bytes -= size_of(sender_id, position[1])
            self.common = max(position, self.common or position)

    def join(self, last: Iterable[Position] = ()) -> None:
        """Merge all horizons, and the positions ``last``, into the one for all senders."""
        every = [*self.of.values(), *last]
        if self.common is not None:
            every.append(self.common)
        self.common = max(every, default=None)
        self.of.clear()
        self._bytes = 0

    def write(self, protos: RepeatedCompositeFieldContainer[pb.Horizon]) -> None:
        """Write those of single senders to a snapshot."""
        for sender_id, (lamport, message_id) in self.of.items():
            protos.add(sender_id=sender_id, lamport=lamport, message_id=message_id)

    def read(self, protos: Iterable[pb.Horizon]) -> None:
        """Read the result of :meth:`write`."""
        for proto in protos:
            self._set(proto.sender_id, (proto.lamport, proto.message_id))

    def _is_within_bounds(self) -> bool:
        return len(self.of) <= MAX_HORIZONS and self._bytes <= self._max_bytes
