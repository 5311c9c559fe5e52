"""Implements the rate limit of RLN (17/WAKU2-RLN-RELAY; RELIABLE-CHANNEL-API, *Rate Limit Manager*). It reads no clock:
``now`` is an argument, in ms.

Epoch = time div epoch size. Relays count envelopes, so every envelope counts, by priority: waiting content is sent
before waiting control traffic, which has every fourth place, so that a sender who always has content still acknowledges
and retransmits; an ephemeral message is sent only when nothing waits and enough of the limit is left. At the
limit, traffic that counts waits for the next epoch; only ephemeral messages are dropped. With ``counts="messages"``
(RELIABLE-CHANNEL-API) only first segments and ephemeral messages count. Items are opaque.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, Literal, NamedTuple, TypeVar

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.settings import check_settings

Item = TypeVar("Item")

CONTENT_PER_CONTROL = 3
"""While both wait, one envelope of control traffic is sent after as many of content."""


class Traffic(StrEnum):
    """The kind of an item. It decides its priority and, with ``counts="messages"``, whether it counts."""

    FIRST_SEGMENT = "first_segment"
    """The first segment of a message, or a message that is not segmented."""
    FURTHER_SEGMENT = "further_segment"
    EPHEMERAL = "ephemeral"
    CONTROL = "control"
    """A retransmission, a repair or a sync message."""


@dataclass(frozen=True, slots=True)
class RateLimitConfig:
    """Configures the rate limit. ``enabled``: ``None`` follows the Waku node: on if the node has RLN on.
    ``epoch_size_ms`` is that of the RLN relay; ``messages_per_epoch`` is the membership's limit. ``counts``:
    ``envelopes``, as relays count, or ``messages``: first segments and ephemeral messages (RELIABLE-CHANNEL-API). The
    warning event is emitted when ``approaching_share`` of the limit is used. Ephemeral messages are dropped when
    ``ephemeral_share`` of it, or all but one, is used. Raises :class:`ConfigurationError` for values out of range."""

    enabled: bool | None = None
    epoch_size_ms: int = 600_000
    messages_per_epoch: int = 1
    counts: Literal["envelopes", "messages"] = "envelopes"
    approaching_share: float = 0.9
    ephemeral_share: float = 0.9

    @classmethod
    def of_lip173(cls, *, enabled: bool = False, epoch_period_sec: int = 600) -> RateLimitConfig:
        """``RateLimitConfig`` of LIP-173, which gives the epoch in seconds and counts every envelope."""
        return cls(enabled=enabled, epoch_size_ms=epoch_period_sec * 1_000)

    def __post_init__(self) -> None:
        check_settings(self, "rate_limit.", positive=("epoch_size_ms", "messages_per_epoch"))
        for name in ("approaching_share", "ephemeral_share"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}.", "Choose above 0, up to 1.")


@dataclass(frozen=True, slots=True)
class Admitted(Generic[Item]):
    """Dispatch the item now."""

    item: Item


@dataclass(frozen=True, slots=True)
class Delayed(Generic[Item]):
    """The item waits for an epoch with room, at the earliest until ``until`` (ms); reported once per item."""

    item: Item
    until: int


@dataclass(frozen=True, slots=True)
class EphemeralDropped(Generic[Item]):
    """An ephemeral item was dropped: ``used`` of the epoch's ``limit`` are used."""

    item: Item
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class LimitApproaching:
    """Usage reached the warning threshold for the first time in this epoch: ``used`` of its ``limit``. The next epoch
    begins at ``until`` (ms)."""

    used: int
    limit: int
    until: int


RateLimitEvent = Admitted[Item] | Delayed[Item] | EphemeralDropped[Item] | LimitApproaching


@dataclass(frozen=True, slots=True)
class RateLimitSnapshot:
    """The used part of an epoch: the state that must survive a restart, and that processes with one membership share.
    Waiting items are not included: their owner stores them and submits them again."""

    epoch: int
    epoch_size_ms: int
    used: int
    announced: bool


class Mark(NamedTuple):
    """A state of a :class:`RateLimitManager`: of its queues the lengths."""

    epoch: int
    clock_epoch: int
    used: int
    announced: bool
    content_in_a_row: int
    content: int
    control: int


class RateLimitManager(Generic[Item]):
    """Decides which items are dispatched now and which wait; every method returns events in order."""

    def __init__(self, config: RateLimitConfig, snapshot: RateLimitSnapshot | None = None) -> None:
        """``snapshot`` contains the count of the epoch in which it was taken; a later epoch starts from zero."""
        self.config = config
        self._epoch = self._clock_epoch = -1
        self._used = 0
        self._announced = False
        self._content: deque[tuple[Item, Traffic]] = deque()
        self._control: deque[tuple[Item, Traffic]] = deque()
        self._content_in_a_row = 0
        self._taken: list[tuple[deque[tuple[Item, Traffic]], tuple[Item, Traffic]]] = []
        """What the last ``submit`` or ``tick`` took from the queues, since the mark."""
        if snapshot is not None:
            self.adopt(snapshot)

    def submit(self, item: Item, traffic: Traffic, now: int) -> list[RateLimitEvent[Item]]:
        """Dispatch waiting items that have room, then dispatch the item, queue it or, if it is ephemeral, possibly drop
        it."""
        events = self.tick(now)
        if not self.config.enabled:
            return [*events, Admitted(item)]
        if traffic is Traffic.EPHEMERAL:
            if self.waiting or self._too_full_for_ephemeral:
                return [*events, EphemeralDropped(item, self._used, self.config.messages_per_epoch)]
            return [*events, *self._dispatch(item, traffic)]
        queue = self._control if traffic is Traffic.CONTROL else self._content
        ahead = self._content or queue  # control traffic waits behind content, too
        if (self._counts(traffic) and (ahead or self._full)) or (traffic is Traffic.FURTHER_SEGMENT and self._content):
            queue.append((item, traffic))
            return [*events, Delayed(item, self.epoch_end)]
        return [*events, *self._dispatch(item, traffic)]

    def tick(self, now: int) -> list[RateLimitEvent[Item]]:
        """Dispatch waiting items, content first, while the epoch of ``now`` has room."""
        # A clock that was set back neither reopens an epoch nor creates room: relays count what this process may have
        # sent before. In the epoch before that of the count nothing leaves; set back further, the one it is set to
        # counts as used.
        epoch = now // self.config.epoch_size_ms
        if epoch > self._epoch:
            self._epoch, self._used, self._announced = epoch, 0, False
        elif epoch < self._epoch - 1:  # it may have been years ahead
            self._epoch, self._used, self._announced = epoch, self.config.messages_per_epoch, True
        self._clock_epoch = epoch
        self._taken.clear()
        events: list[RateLimitEvent[Item]] = []
        while (queue := self._next_queue()) and not (self._counts(queue[0][1]) and self._full):
            waiting = queue.popleft()
            self._taken.append((queue, waiting))
            events += self._dispatch(*waiting)
        return events

    def mark(self) -> Mark:
        """The state that :meth:`undo` goes back to: before one ``submit`` or ``tick``."""
        self._taken.clear()  # Ctrl-C may come before there is one
        return Mark(
            self._epoch,
            self._clock_epoch,
            self._used,
            self._announced,
            self._content_in_a_row,
            len(self._content),
            len(self._control),
        )

    def undo(self, mark: Mark) -> None:
        """Undo the one ``submit`` or ``tick`` since ``mark``. What waits is not copied for it: that cost each submit
        what all that wait cost."""
        for queue, waiting in reversed(self._taken):
            queue.appendleft(waiting)
        for queue, length in ((self._content, mark.content), (self._control, mark.control)):
            if len(queue) > length:
                queue.pop()
        self._epoch, self._clock_epoch, self._used, self._announced, self._content_in_a_row = mark[:5]

    def next_due(self) -> int | None:
        """When (ms) ``tick`` next has something to dispatch, or ``None``."""
        return self.epoch_end if self.waiting else None

    def is_due(self, now: int) -> bool:
        """Whether :meth:`tick` has something to dispatch at ``now``, or the clock was set back."""
        return bool(self.waiting) and now // self.config.epoch_size_ms != self._clock_epoch

    def withdraw(self, matches: Callable[[Item], bool]) -> bool:
        """Remove the waiting item that ``matches``; returns whether there was one."""
        for queue in (self._control, self._content):
            for waiting in queue:
                if matches(waiting[0]):
                    queue.remove(waiting)
                    return True
        return False

    def drain(self) -> list[Item]:
        """Remove all waiting items from the queues and return them in order."""
        items = [item for queue in (self._content, self._control) for item, _ in queue]
        self._content.clear()
        self._control.clear()
        return items

    def adopt(self, snapshot: RateLimitSnapshot) -> None:
        """Adopt a count that another or an earlier process stored."""
        # If the epoch size has changed, the last ms of the stored epoch selects the current one that it counts in: the
        # later one, so that a changed setting frees no room that was used already.
        end = (snapshot.epoch + 1) * snapshot.epoch_size_ms - 1
        epoch = end // self.config.epoch_size_ms
        if epoch < self._epoch:
            return
        self._used = max(snapshot.used, self._used if epoch == self._epoch else 0)
        self._announced = snapshot.announced or (self._announced and epoch == self._epoch)
        self._epoch = epoch

    def copy(self, config: RateLimitConfig) -> RateLimitManager[Item]:
        """Another manager with the same count and waiting items, under ``config``."""
        other: RateLimitManager[Item] = RateLimitManager(config, self.snapshot())
        other._content, other._control = self._content.copy(), self._control.copy()
        other._content_in_a_row = self._content_in_a_row
        return other

    def snapshot(self) -> RateLimitSnapshot:
        """The state that must survive a restart."""
        return RateLimitSnapshot(self._epoch, self.config.epoch_size_ms, self._used, self._announced)

    @property
    def waiting(self) -> int:
        """The number of waiting items."""
        return len(self._content) + len(self._control)

    @property
    def used(self) -> int:
        """How much of the current epoch is used."""
        return self._used

    @property
    def epoch_end(self) -> int:
        """When (ms) there can be room again: the epoch after that of the count begins, or that of the count, if the
        clock was set back to the one before it and there is room in it."""
        is_before = self._clock_epoch < self._epoch and self._used < self.config.messages_per_epoch
        return (self._epoch if is_before else self._epoch + 1) * self.config.epoch_size_ms

    @property
    def _full(self) -> bool:
        return self._clock_epoch < self._epoch or self._used >= self.config.messages_per_epoch

    @property
    def _too_full_for_ephemeral(self) -> bool:
        limit = self.config.messages_per_epoch
        return self._full or self._used >= min(self.config.ephemeral_share * limit, limit - 1)

    def _next_queue(self) -> deque[tuple[Item, Traffic]]:
        if self._control and (not self._content or self._content_in_a_row >= CONTENT_PER_CONTROL):
            return self._control
        return self._content

    def _counts(self, traffic: Traffic) -> bool:
        if self.config.counts == "envelopes":
            return True
        return traffic in (Traffic.FIRST_SEGMENT, Traffic.EPHEMERAL)

    def _dispatch(self, item: Item, traffic: Traffic) -> list[RateLimitEvent[Item]]:
        events: list[RateLimitEvent[Item]] = [Admitted(item)]
        self._content_in_a_row = 0 if traffic is Traffic.CONTROL else self._content_in_a_row + 1
        if self._counts(traffic):
            self._used += 1
            limit = self.config.messages_per_epoch
            if not self._announced and self._used >= self.config.approaching_share * limit:
                self._announced = True
                events.append(LimitApproaching(self._used, limit, self.epoch_end))
        return events
