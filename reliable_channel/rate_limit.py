"""The rate limit of RLN (protocol.md §6; seed 000 *Rate Limit Manager*). Ring 1: ``now`` is an argument, in ms.

One manager per node, as one RLN membership has it. Epoch = time div epoch size. Only the first segment of a message
counts, the rest is exempt; at the limit what counts waits for the next epoch, in order, and what belongs to a waiting
message waits behind it. Only ephemeral messages are dropped, at 90 % of the limit. Items are opaque.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from reliable_channel.errors import ConfigurationError

Item = TypeVar("Item")

EPHEMERAL_SHARE = 0.9
"""An ephemeral message is dropped when this share of the epoch's messages is used (protocol.md §5, *Ephemeral*)."""


class Traffic(StrEnum):
    """What is to be dispatched: it decides whether it counts."""

    FIRST_SEGMENT = "first_segment"
    FURTHER_SEGMENT = "further_segment"
    EPHEMERAL = "ephemeral"
    CONTROL = "control"
    """A retransmission, a repair or a sync message."""


@dataclass(frozen=True, slots=True)
class RateLimitConfig:
    """``epoch_size_ms`` as the RLN relay has it; ``messages_per_epoch`` is the membership's limit;
    ``approaching_share`` of it used gives the warning event. Raises :class:`ConfigurationError` out of range."""

    enabled: bool = False
    epoch_size_ms: int = 600_000
    messages_per_epoch: int = 1
    count_control_traffic: bool = False
    approaching_share: float = 0.9

    def __post_init__(self) -> None:
        for name in ("epoch_size_ms", "messages_per_epoch"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}.", "Choose 1 or more.")
        if not 0.0 < self.approaching_share <= 1.0:
            raise ConfigurationError(f"approaching_share is {self.approaching_share}.", "Choose above 0, up to 1.")


@dataclass(frozen=True, slots=True)
class Dispatch(Generic[Item]):
    """Dispatch the item now."""

    item: Item


@dataclass(frozen=True, slots=True)
class Delayed(Generic[Item]):
    """The item waits for an epoch that has room, not before ``until`` (ms); said once per item."""

    item: Item
    until: int


@dataclass(frozen=True, slots=True)
class EphemeralDropped(Generic[Item]):
    """An ephemeral item was dropped: ``used`` of ``limit`` messages of the epoch are gone."""

    item: Item
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class LimitApproaching:
    """``used`` of ``limit`` messages of the epoch are gone, for the first time that many; the next begins at
    ``until`` (ms)."""

    used: int
    limit: int
    until: int


RateLimitEvent = Dispatch[Item] | Delayed[Item] | EphemeralDropped[Item] | LimitApproaching


@dataclass(frozen=True, slots=True)
class RateLimitSnapshot:
    """What must survive a restart: how many messages of which epoch are used. Waiting items are their owner's to keep
    and to submit again."""

    epoch: int
    epoch_size_ms: int
    used: int
    announced: bool


class RateLimitManager(Generic[Item]):
    """Says what is dispatched now, in order, and what waits; every method returns events in order."""

    def __init__(self, config: RateLimitConfig, snapshot: RateLimitSnapshot | None = None) -> None:
        """``snapshot`` carries the count of the epoch it was taken in; a later epoch starts from zero by itself."""
        self.config = config
        self._epoch = -1
        self._used = 0
        self._announced = False
        self._waiting: deque[tuple[Item, Traffic, str]] = deque()
        self._waiting_messages: dict[str, int] = {}
        if snapshot is not None:
            self._restore(snapshot)

    def submit(self, item: Item, traffic: Traffic, now: int, message: str = "") -> list[RateLimitEvent[Item]]:
        """Dispatch the item, queue it or, if ephemeral, perhaps drop it; first whatever waits and has its turn.

        ``message`` names the logical message whose segment it is: a further segment waits while its first does.
        """
        events = self.tick(now)
        if not self.config.enabled:
            return [*events, Dispatch(item)]
        if traffic is Traffic.EPHEMERAL and self._used >= EPHEMERAL_SHARE * self.config.messages_per_epoch:
            return [*events, EphemeralDropped(item, self._used, self.config.messages_per_epoch)]
        if self._must_wait(traffic, message):
            self._waiting.append((item, traffic, message))
            self._waiting_messages[message] = self._waiting_messages.get(message, 0) + 1
            return [*events, Delayed(item, self.epoch_end)]
        return [*events, *self._dispatch(item, traffic)]

    def tick(self, now: int) -> list[RateLimitEvent[Item]]:
        """Dispatch what waits, in order, as far as the epoch of ``now`` has room. A clock that was set back neither
        reopens an epoch nor gives room."""
        epoch = now // self.config.epoch_size_ms
        if epoch > self._epoch:
            self._epoch, self._used, self._announced = epoch, 0, False
        events: list[RateLimitEvent[Item]] = []
        while self._waiting and not (self._counts(self._waiting[0][1]) and self._full):
            item, traffic, message = self._waiting.popleft()
            self._left(message, 1)
            events += self._dispatch(item, traffic)
        return events

    def next_due(self) -> int | None:
        """When (ms) ``tick`` next has something to dispatch, or ``None``."""
        return self.epoch_end if self._waiting else None

    def cancel(self, message: str) -> list[Item]:
        """Take a message's waiting items out of the queue; they are returned, in order."""
        cancelled = [item for item, _, name in self._waiting if name == message]
        self._waiting = deque(entry for entry in self._waiting if entry[2] != message)
        self._left(message, len(cancelled))
        return cancelled

    def snapshot(self) -> RateLimitSnapshot:
        """What must survive a restart."""
        return RateLimitSnapshot(self._epoch, self.config.epoch_size_ms, self._used, self._announced)

    @property
    def waiting(self) -> int:
        """How many items wait."""
        return len(self._waiting)

    @property
    def used(self) -> int:
        """How many messages of the current epoch are used."""
        return self._used

    @property
    def epoch_end(self) -> int:
        """When (ms) the next epoch begins."""
        return (self._epoch + 1) * self.config.epoch_size_ms

    @property
    def _full(self) -> bool:
        return self._used >= self.config.messages_per_epoch

    def _counts(self, traffic: Traffic) -> bool:
        if traffic is Traffic.CONTROL:
            return self.config.count_control_traffic
        return traffic is not Traffic.FURTHER_SEGMENT

    def _must_wait(self, traffic: Traffic, message: str) -> bool:
        """What counts waits at the limit and behind what waits; a further segment only behind its own first one."""
        if self._counts(traffic):
            return bool(self._waiting) or self._full
        return traffic is Traffic.FURTHER_SEGMENT and message in self._waiting_messages

    def _dispatch(self, item: Item, traffic: Traffic) -> list[RateLimitEvent[Item]]:
        events: list[RateLimitEvent[Item]] = [Dispatch(item)]
        if self._counts(traffic):
            self._used += 1
            limit = self.config.messages_per_epoch
            if not self._announced and self._used >= self.config.approaching_share * limit:
                self._announced = True
                events.append(LimitApproaching(self._used, limit, self.epoch_end))
        return events

    def _left(self, message: str, count: int) -> None:
        left = self._waiting_messages.get(message, 0) - count
        if left > 0:
            self._waiting_messages[message] = left
        else:
            self._waiting_messages.pop(message, None)

    def _restore(self, snapshot: RateLimitSnapshot) -> None:
        """The stored epoch. With another epoch size its last ms decides which epoch of now it counts in: the later
        one, so that a changed setting never gives room that was used already."""
        end = (snapshot.epoch + 1) * snapshot.epoch_size_ms - 1
        self._epoch = end // self.config.epoch_size_ms
        self._used, self._announced = snapshot.used, snapshot.announced
