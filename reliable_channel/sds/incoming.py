"""The incoming buffer and what it waits for (protocol.md §5, *Receive* and *Incoming sweep*).

A dependency that is named and not in the log is *held* (its message waits here itself), *missing*, *lost* or *before
observation*. Each missing id is reported once, asked for again with back-off, and kept as lost after the time-out.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from reliable_channel.sds.config import SdsConfig
from reliable_channel.sds.events import DependencyLost, Event, RefetchDue
from reliable_channel.wire.sds import HistoryEntry

OBSERVER_LOST_MS = 300_000
"""How long an observer waits for a missing message: above T_req + T_resp of SDS-R."""


class Waiting:
    """A content message in the incoming buffer."""

    __slots__ = (
        "before_observation",
        "content",
        "digest",
        "hint",
        "history",
        "lamport",
        "late",
        "lost",
        "message_id",
        "past",
        "received_at",
        "repaired",
        "replaces",
        "sender_id",
        "unmet",
    )

    def __init__(
        self,
        message_id: str,
        sender_id: str,
        lamport: int,
        history: tuple[str, ...],
        digest: bytes,
        content: bytes | None,
        hint: bytes | None,
        received_at: int,
    ) -> None:
        self.message_id = message_id
        self.sender_id = sender_id
        self.lamport = lamport
        self.history = history
        self.digest = digest
        self.content = content
        self.hint = hint
        self.received_at = received_at
        self.past = 0
        self.unmet: dict[str, None] = {}
        self.lost: tuple[str, ...] = ()
        self.before_observation: tuple[str, ...] = ()
        self.late = False
        self.repaired = False
        self.replaces = False

    def reach(self, bit: int) -> None:
        """A participant has this message in its causal past."""
        self.past |= bit

    def set_hint(self, hint: bytes) -> None:
        """The hash of its newest envelope."""
        self.hint = hint


class Missing:
    """An id that is named and not here."""

    __slots__ = ("charged_to", "due", "hint", "lost_at", "message_id", "reached", "refetches", "sender_id", "since")

    def __init__(
        self,
        message_id: str,
        sender_id: str | None,
        hint: bytes | None,
        since: int,
        due: int,
        lost_at: int | None,
        charged_to: str,
    ) -> None:
        self.message_id = message_id
        self.sender_id = sender_id
        self.hint = hint
        self.since = since
        self.due = due
        self.lost_at = lost_at
        self.charged_to = charged_to
        """Whose budget of missing ids it counts in: the first that named it."""
        self.refetches = 0
        self.reached: dict[str, tuple[str, bool]] = {}
        """Participant that has this id in its causal past → (the message that says so, whether it names it itself):
        when the message comes, they have acknowledged it."""


class Remembered:
    """A bounded set of ids, the oldest dropped first. (An ``OrderedDict``: finding the first key of a plain dict whose
    first keys were deleted is not O(1).)"""

    def __init__(self, limit: int, ids: Iterable[str] = ()) -> None:
        self._limit = limit
        self._ids = OrderedDict.fromkeys(ids)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._ids

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def add(self, message_id: str) -> None:
        """Remember an id."""
        self._ids[message_id] = None
        if len(self._ids) > self._limit:
            self._ids.popitem(last=False)

    def discard(self, message_id: str) -> bool:
        """Forget an id; returns whether it was there."""
        return self._ids.pop(message_id, self) is None


class IncomingBuffer:
    """Waiting messages, missing ids and their timers. The times of a sweep are the multiples of its interval: they do
    not depend on when a channel was opened or restored."""

    def __init__(self, config: SdsConfig, observer: bool) -> None:
        self._config = config
        timeout = config.timeout_for_lost_messages_ms
        self._lost_after = (OBSERVER_LOST_MS if observer else 0) if timeout is None else timeout
        self.waiting: dict[str, Waiting] = {}
        self.waiting_bytes = 0
        self.missing: dict[str, Missing] = {}
        self.lost = Remembered(config.max_remembered)
        self.before_observation = Remembered(config.max_remembered)
        self._dependents: dict[str, dict[str, None]] = {}
        self._open_by_sender: dict[str, int] = {}
        self._timers: list[tuple[int, str]] = []

    # ---- the buffer ----------------------------------------------------------------------------------------------

    def hold(self, waiting: Waiting) -> None:
        """Put a message into the buffer until ``unmet`` is empty."""
        self.waiting[waiting.message_id] = waiting
        self.waiting_bytes += len(waiting.content or b"")
        for message_id in waiting.unmet:
            self._dependents.setdefault(message_id, {})[waiting.message_id] = None

    def take(self, message_id: str) -> Waiting:
        """Take a message out of the buffer."""
        waiting = self.waiting.pop(message_id)
        self.waiting_bytes -= len(waiting.content or b"")
        for dependency in waiting.unmet:
            self._forget_dependent(dependency, message_id)
        return waiting

    def dependents(self, message_id: str) -> list[Waiting]:
        """The messages that wait for an id."""
        return [self.waiting[dependent] for dependent in self._dependents.get(message_id, ())]

    def met(self, message_id: str) -> list[Waiting]:
        """An id is in the log, or given up: what waited for nothing else, out of the buffer."""
        ready = []
        for dependent in list(self._dependents.get(message_id, ())):
            if self.release(dependent, message_id):
                ready.append(self.take(dependent))
        return ready

    def release(self, dependent: str, message_id: str) -> bool:
        """A message waits no longer for one id; returns whether it waits for nothing else."""
        waiting = self.waiting[dependent]
        waiting.unmet.pop(message_id, None)
        self._forget_dependent(message_id, dependent)
        return not waiting.unmet

    def _forget_dependent(self, message_id: str, dependent: str) -> None:
        dependents = self._dependents.get(message_id)
        if dependents is not None:
            dependents.pop(dependent, None)
            if not dependents:
                del self._dependents[message_id]

    # ---- missing ids ---------------------------------------------------------------------------------------------

    def budget_left(self, sender_id: str) -> int:
        """How many more ids a sender may name that are missing."""
        config = self._config
        of_sender = config.max_missing_per_sender - self._open_by_sender.get(sender_id, 0)
        return min(of_sender, config.max_missing - len(self.missing))

    def miss(self, entry: HistoryEntry, named_by_sender: str, now: int) -> Missing:
        """A new missing id."""
        lost_at = self._next_sweep(now + self._lost_after) if self._lost_after else None
        missing = Missing(
            entry.message_id,
            entry.sender_id or None,
            entry.retrieval_hint or None,
            now,
            self._next_sweep(now + 1),
            lost_at,
            named_by_sender,
        )
        self.restore_missing(missing)
        return missing

    def restore_missing(self, missing: Missing) -> None:
        """Add a missing id and its timer."""
        self.missing[missing.message_id] = missing
        self._open_by_sender[missing.charged_to] = self._open_by_sender.get(missing.charged_to, 0) + 1
        heapq.heappush(self._timers, (self._when(missing), missing.message_id))

    def found(self, message_id: str) -> Missing | None:
        """An id is no longer missing."""
        missing = self.missing.pop(message_id, None)
        if missing is not None:
            left = self._open_by_sender[missing.charged_to] - 1
            if left:
                self._open_by_sender[missing.charged_to] = left
            else:
                del self._open_by_sender[missing.charged_to]
        return missing

    # ---- the sweep -----------------------------------------------------------------------------------------------

    def next_due(self) -> int | None:
        """The next sweep that finds something to do."""
        timers = self._timers
        while timers:
            due, message_id = timers[0]
            missing = self.missing.get(message_id)
            if missing is not None and self._when(missing) == due:
                return due
            heapq.heappop(timers)
        return None

    def sweep(self, now: int, events: list[Event]) -> list[str]:
        """Run the sweep at ``now``: ask again for what is due, and return the ids that are lost."""
        lost: list[str] = []
        asked = 0
        asked_of: dict[str, int] = {}
        while self.next_due() == now:
            missing = self.missing[heapq.heappop(self._timers)[1]]
            if missing.lost_at is not None and missing.lost_at <= now:
                self._lose(missing, now, events)
                lost.append(missing.message_id)
                continue
            charged = asked_of.get(missing.charged_to, 0)
            over = (
                asked >= self._config.max_refetches_per_sweep
                or charged >= self._config.max_refetches_per_sender_and_sweep
            )
            if over:
                missing.due = self._next_sweep(now + 1)
            else:
                asked += 1
                asked_of[missing.charged_to] = charged + 1
                self._ask(missing, now, events)
            heapq.heappush(self._timers, (self._when(missing), missing.message_id))
        return lost

    def _ask(self, missing: Missing, now: int, events: list[Event]) -> None:
        config = self._config
        wait = config.retrieve_frequency_ms * config.retrieve_backoff ** min(missing.refetches, 64)
        missing.refetches += 1
        missing.due = self._next_sweep(now + round(min(wait, config.retrieve_max_interval_ms)))
        events.append(
            RefetchDue(now, missing.message_id, missing.hint, missing.refetches, missing.since, missing.sender_id)
        )

    def _lose(self, missing: Missing, now: int, events: list[Event]) -> None:
        self.found(missing.message_id)
        self.lost.add(missing.message_id)
        waiting = tuple(self._dependents.get(missing.message_id, ()))
        events.append(
            DependencyLost(now, missing.message_id, missing.since, missing.refetches, missing.sender_id, waiting)
        )

    @staticmethod
    def _when(missing: Missing) -> int:
        return missing.due if missing.lost_at is None else min(missing.due, missing.lost_at)

    def _next_sweep(self, at: int) -> int:
        interval = self._config.sweep_in_buf_interval_ms
        return -(-at // interval) * interval
