"""Buffers messages whose dependencies are not met, and tracks those dependencies (docs/sds.md, *Limits*).

A dependency that is named but not in the log is *held* (its message waits in this buffer too), *missing*, *lost* or
*before observation*. Each missing id is reported once, requested again with back-off, and declared lost after the
time-out. All memory is bounded in number and bytes, and divided fairly between senders
(:mod:`~reliable_channel.core.shares`).
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from itertools import takewhile
from operator import attrgetter

from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.sds.events import DependencyLost, RefetchDue, SdsEvent
from reliable_channel.core.sds.keys import Key, SendKey, sds_id_of
from reliable_channel.core.sds.log import MessageLog
from reliable_channel.core.shares import Remembered, Shares, size_of, take_turns
from reliable_channel.core.wire.sds import HistoryEntry

OBSERVER_LOST_MS, OBSERVER_LOST_MARGIN_MS = 300_000, 60_000
"""How long (ms) an observer waits for a missing message at least, and how much longer than T_req + T_resp of SDS-R."""

PARTICIPANT_LOST_MS = 3_600_000
"""How long (ms) a participant waits for a missing message without a time-out of its own. SDS allows it to wait for
ever; but names are free, so an id that never existed and that strangers name would hold messages for good."""

MAX_HELD_TIMES = 4
"""A message is held at most this many times as long as an id may be missing. Each message that a stranger sends in time
may name another one that never existed, so the time of each id alone would not end the wait."""

CATCH_UP_MS = 3_600_000
"""A participant that slept longer than this (ms) does not send the sync messages that were due meanwhile, and holds
messages as if they had come when it woke up."""

AWAKE_MS = 60_000
"""How long a participant that wakes up waits at least for what it missed."""

MAX_SYNCS, MAX_SYNCS_BYTES = 256, 32 * 1024
"""Remembered sync messages: peers name only the last ones, if any."""

MAX_NAMINGS = 4
"""Different (sender, hint) pairs remembered per missing id."""

MAX_REACHED = 32
"""Participants remembered per missing id that have it in their causal past."""

UNMET_BYTES = 512
"""Bytes that each id a message waits for counts in the buffer, besides its text. One message may release all waiting
messages, which examines each of these ids: 65 000 with the default bound, about 15 ms."""

MAX_LOST_PER_SWEEP = 2_000
"""Maximum number of missing ids that one sweep declares lost, at about 6 µs each. The rest wait for later sweeps: 20 s
at most with the default bound of missing ids."""

Position = tuple[int, str, str]
"""Lamport timestamp, SDS id, sender."""


@dataclass(slots=True, eq=False, repr=False)
class Waiting:
    """A content message in the incoming buffer."""

    key: Key
    sender_id: str
    lamport: int
    history: tuple[str, ...]
    digest: bytes
    content: bytes | None
    hint: bytes | None
    received_at: int
    sds_id: str = field(init=False)
    """The SDS id on the wire."""
    past: int = 0
    unmet: list[str] = field(default_factory=list)
    """The dependencies it waits for, in reverse order: the last one is being watched for."""
    size: int = 0
    """Bytes that it counts in the buffer."""
    lost: list[str] = field(default_factory=list)
    before_observation: tuple[str, ...] = ()
    late: bool = False
    repaired: bool = False
    replaces: bool = False
    verified: bool = False
    """Whether its id was recomputed from it."""
    won: bool = False
    """Whether it replaced another message."""
    unproven: bool = False
    """Whether it is not accepted as the owner of its id (:mod:`~reliable_channel.core.sds.unproven`)."""

    def __post_init__(self) -> None:
        self.sds_id = sds_id_of(self.key)

    @property
    def is_further_send(self) -> bool:
        """Whether it is a further send of an id."""
        return not self.unproven and self.key.__class__ is SendKey

    def reach(self, bit: int) -> None:
        """Record that a participant has this message in its causal past."""
        self.past |= bit

    def set_hint(self, hint: bytes) -> None:
        """Set the hash of its newest envelope."""
        self.hint = hint

    def set_history(self, history: tuple[str, ...]) -> None:
        """Set its causal history, which was not known before."""
        self.history = history


@dataclass(slots=True, eq=False, repr=False)
class Missing:
    """An id that is named but has not arrived."""

    message_id: str
    sender_id: str | None
    hint: bytes | None
    since: int
    due: int
    lost_at: int
    charged_to: str
    """The sender in whose budget of missing ids it counts, at first the first one that named it."""
    others: list[tuple[str | None, bytes | None]] = field(default_factory=list)
    """Other senders and hints that messages give for it; requests use all in turn."""
    refetches: int = 0
    reached: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Participant that has this id in its causal past → (the message that proves it, whether that message names the
    id itself). When the missing message arrives, these participants have acknowledged it."""

    def namings(self) -> list[tuple[str | None, bytes | None]]:
        """The senders and hints that messages give for it, in order of arrival."""
        return [(self.sender_id, self.hint), *self.others]

    def may_be_of(self, sender_id: str) -> bool:
        """Whether a message of this sender can be the named one: the sender is named, or no sender is."""
        named = {sender for sender, _ in self.namings() if sender is not None}
        return not named or sender_id in named

    def size(self) -> int:
        """Bytes that it counts in its sender's share."""
        others = sum(size_of(sender or "") + len(hint or b"") for sender, hint in self.others)
        return size_of(self.message_id, self.sender_id or "", self.charged_to) + len(self.hint or b"") + others


class IncomingBuffer:
    """Waiting messages, missing ids and their timers."""

    def __init__(self, config: SdsParameters, observer: bool) -> None:
        self._config = config
        timeout = config.timeout_for_lost_messages_ms
        # Longer than a request and its answer may take.
        usual = max(OBSERVER_LOST_MS, 2 * config.repair_t_max_ms + OBSERVER_LOST_MARGIN_MS) if observer else 0
        self._lost_after = (usual if timeout is None else timeout) or PARTICIPANT_LOST_MS
        self._awake_since = 0
        self.waiting: OrderedDict[Key, Waiting] = OrderedDict()
        self._waiting_shares = Shares[Key](config.max_waiting, config.max_waiting_bytes)
        self._watchers: dict[str, dict[Key, None]] = {}
        """Id → the waiting messages that watch for it as their first unmet dependency."""
        self.missing: dict[str, Missing] = {}
        self._missing_shares = Shares[str](config.max_missing, config.max_missing_bytes)
        self._reached_left = config.max_missing_bytes
        self.lost = Remembered(config.max_remembered, config.max_remembered_bytes)
        self.evicted = Remembered(config.max_remembered, config.max_remembered_bytes)
        """Missing ids for which their sender's share had no room. They are lost for messages of that sender only: else
        a stranger could name honest ids first, and flood its own share, so that nobody waits for them."""
        self.before_observation = Remembered(config.max_remembered, config.max_remembered_bytes)
        self.syncs = Remembered(MAX_SYNCS, MAX_SYNCS_BYTES)
        """Received sync messages, and own messages of a lost state: they meet the dependencies that name them, and do
        not take ids away from content."""
        # A heap. Entries of timers that were changed or ended stay in it, and are skipped when they come up: finding
        # one to remove it would take a look at all.
        self._timers: list[tuple[int, str]] = []
        self._ending: Counter[int] = Counter()
        """The time of a sweep → the number of missing ids it will declare lost."""

    # ---- the buffer ----------------------------------------------------------------------------------------------

    def hold(self, waiting: Waiting) -> None:
        """Put a message into the buffer until ``unmet`` is empty."""
        if not waiting.size:
            named = (*waiting.history, *waiting.unmet, *waiting.lost, *waiting.before_observation)
            texts = size_of(waiting.sds_id, waiting.sender_id, *named)
            unmet = UNMET_BYTES * len(waiting.unmet)
            waiting.size = len(waiting.content or b"") + len(waiting.hint or b"") + texts + unmet
        self.waiting[waiting.key] = waiting
        self._waiting_shares.add(waiting.key, waiting.sender_id, waiting.size)
        self._watch(waiting)

    def take(self, key: Key) -> Waiting:
        """Remove a message from the buffer and return it."""
        waiting = self.waiting.pop(key)
        self._waiting_shares.remove(key, waiting.sender_id)
        self._unwatch(waiting)
        return waiting

    def _unwatch(self, waiting: Waiting) -> None:
        watchers = self._watchers.get(waiting.unmet[-1]) if waiting.unmet else None
        if watchers is not None:
            watchers.pop(waiting.key, None)
            if not watchers:
                del self._watchers[waiting.unmet[-1]]

    def narrow(self, waiting: Waiting, history: Collection[str]) -> bool:
        """Drop the dependencies of a held message that another copy of it does not name in its ``history``. Returns
        whether it waits for nothing now; it stays in the buffer."""
        # Of copies with different histories no one can tell which is the sender's: it waits only for what all name.
        unmet = [dependency for dependency in waiting.unmet if dependency in history]
        if len(unmet) == len(waiting.unmet):
            return False
        self._unwatch(waiting)
        waiting.unmet = unmet
        waiting.lost = [dependency for dependency in waiting.lost if dependency in history]
        waiting.set_history(tuple(dependency for dependency in waiting.history if dependency in history))
        self._watch(waiting)
        return not unmet

    def is_full(self) -> bool:
        """Whether the buffer is over its bound."""
        return self._waiting_shares.is_over()

    def take_surplus(self) -> Waiting | None:
        """:meth:`take_without_rest` of a message of the sender that uses most of the buffer: the first in causal order,
        so that it waits for none of the others. ``None`` unless the buffer is over its bound."""
        shares = self._waiting_shares
        if not shares.is_over():
            return None
        held = map(self.waiting.__getitem__, shares.keys_of(shares.greediest()))
        return self.take_without_rest(min(held, key=attrgetter("lamport")).key)

    def settle(
        self, message_id: str, log: MessageLog, meets: Callable[[str, int], bool], *, past: bool = False
    ) -> tuple[list[Waiting], list[tuple[Waiting, str]]]:
        """Recheck the messages that watch for an id, after it was delivered, held or declared lost.

        Returns the messages that wait for nothing else, which stay in the buffer, and (message, dependency) for each
        held dependency that is not earlier than its message, which therefore does not wait for it. ``meets``: of
        unproven messages. ``past``: the id counts as met although it is not in the log."""
        ready: list[Waiting] = []
        not_causal: list[tuple[Waiting, str]] = []
        in_log, held_under, missing, syncs = log.holds, self.waiting.get, self.missing, self.syncs.owners
        for key in self._watchers.pop(message_id, ()):
            waiting = self.waiting[key]
            unmet = waiting.unmet
            while unmet:
                dependency = unmet[-1]
                is_met = in_log(dependency) or (past and dependency == message_id)
                if not is_met and not (waiting.unproven and meets(dependency, waiting.lamport)):
                    held = held_under(dependency)
                    if held is not None:
                        if held.lamport < waiting.lamport:
                            self._watch_latest(waiting)
                            break
                        not_causal.append((waiting, dependency))
                    elif dependency in missing:
                        break
                    elif dependency not in syncs:  # named, not here and not missing any more: it was declared lost
                        waiting.lost.append(dependency)
                unmet.pop()
            if unmet:
                self._watch(waiting)
            else:
                ready.append(waiting)
        not_causal.sort(key=lambda each: position_of(each[0]))
        return ready, not_causal

    def _watch_latest(self, waiting: Waiting) -> None:
        """Let a message watch for the latest of the held messages that it waits for."""
        # Messages that become ready together are delivered in Lamport order, so the others precede that one, and the
        # message need not be looked at again for each.
        unmet = waiting.unmet
        last = latest = len(unmet) - 1
        highest = -1
        for index in range(last, -1, -1):
            held = self.waiting.get(unmet[index])
            if held is None:
                if unmet[index] in self.missing:
                    break
            elif highest < held.lamport < waiting.lamport:
                highest, latest = held.lamport, index
        unmet[last], unmet[latest] = unmet[latest], unmet[last]

    def _watch(self, waiting: Waiting) -> None:
        if waiting.unmet:
            self._watchers.setdefault(waiting.unmet[-1], {})[waiting.key] = None

    # ---- missing ids ---------------------------------------------------------------------------------------------

    def miss(self, entry: HistoryEntry, named_by_sender: str, now: int) -> Missing:
        """Add a missing id, charged to the sender that names it."""
        missing = Missing(
            entry.message_id,
            entry.sender_id or None,
            entry.retrieval_hint or None,
            now,
            self._next_sweep(now + 1),  # the sweep at ``now`` is over: timers run before messages
            self._choose_loss_time(now + self._lost_after),
            named_by_sender,
        )
        self.restore_missing(missing)
        return missing

    def restore_missing(self, missing: Missing) -> None:
        """Add a missing id and its timer."""
        self.missing[missing.message_id] = missing
        self._missing_shares.add(missing.message_id, missing.charged_to, missing.size())
        self._reached_left -= sum(size_of(by, via) for by, (via, _) in missing.reached.items())
        self._ending[missing.lost_at] += 1
        heapq.heappush(self._timers, (self._find_due(missing), missing.message_id))

    def remove_missing(self, message_id: str) -> Missing | None:
        """Remove an id that is no longer missing."""
        missing = self.missing.pop(message_id, None)
        if missing is not None:
            self._missing_shares.remove(message_id, missing.charged_to)
            self._reached_left += sum(size_of(by, via) for by, (via, _) in missing.reached.items())
            self._stop_counting(missing.lost_at)
        return missing

    def find_namer(self, message_id: str) -> str:
        """The sender in whose budget a missing id counts; empty if it is not missing."""
        missing = self.missing.get(message_id)
        return "" if missing is None else missing.charged_to

    def record_naming(self, missing: Missing, entry: HistoryEntry, sender_id: str) -> None:
        """Record that a message names a missing id, with its sender and hint if they are new."""
        shares = self._missing_shares
        naming = (entry.sender_id or None, entry.retrieval_hint or None)
        if any(naming) and len(missing.others) < MAX_NAMINGS - 1 and naming not in missing.namings():
            missing.others.append(naming)
            shares.resize(missing.message_id, missing.charged_to, missing.size())
        # Charged to the sender that misses fewer: an id that an honest message waits for is then not declared lost when
        # a greedy sender that named it first exceeds its share.
        weight = max(shares.unit, missing.size())
        if sender_id != missing.charged_to and (
            shares.weight_of(sender_id) + weight < shares.weight_of(missing.charged_to)
        ):
            shares.remove(missing.message_id, missing.charged_to)
            del self.missing[missing.message_id]  # and added again: it is now the newest of the new sender
            missing.charged_to = sender_id
            shares.add(missing.message_id, sender_id, missing.size())
            self.missing[missing.message_id] = missing

    def _stop_counting(self, lost_at: int) -> None:
        self._ending[lost_at] -= 1
        if not self._ending[lost_at]:
            del self._ending[lost_at]

    def reach(self, missing: Missing, by: str, via: str, *, directly: bool) -> None:
        """Remember that a participant has a missing id in its causal past, if there is room."""
        if directly or by not in missing.reached:
            size = size_of(by, via)
            had = missing.reached.get(by)
            freed = size_of(by, had[0]) if had is not None else 0
            if size - freed <= self._reached_left and (had is not None or len(missing.reached) < MAX_REACHED):
                missing.reached[by] = (via, directly)
                self._reached_left -= size - freed

    def drop_surplus_missing(self, sender_id: str, now: int, events: list[SdsEvent]) -> dict[str, str]:
        """Declare missing ids lost while ``sender_id`` or the channel has more than its bound: each time the oldest of
        the sender with most. Returns them, each with the sender it was charged to."""
        shares = self._missing_shares
        of_one = self._config.max_missing_per_sender * shares.unit
        given_up: dict[str, str] = {}
        while True:
            if shares.weight_of(sender_id) > of_one:
                greedy = sender_id
            elif shares.is_over():
                greedy = shares.greediest()
            else:
                return given_up
            missing = self.missing[shares.oldest_of(greedy)]
            self._lose(missing, now, events, evicted=True)
            given_up[missing.message_id] = greedy

    # ---- the sweep -----------------------------------------------------------------------------------------------

    def next_due(self) -> int | None:
        """The time (ms) of the next sweep that has something to do."""
        timer = self._next_timer()
        if not self.waiting:
            return timer
        release = self._next_sweep(self._hold_limit(next(iter(self.waiting.values()))))
        return release if timer is None else min(timer, release)

    def _hold_limit(self, waiting: Waiting) -> int:
        return max(waiting.received_at, self._awake_since) + MAX_HELD_TIMES * self._lost_after

    def list_overdue(self, now: int) -> list[Key]:
        """The messages that are held too long, in causal order: none is given up before one that it waits for."""
        overdue = takewhile(lambda waiting: self._hold_limit(waiting) <= now, self.waiting.values())
        return [waiting.key for waiting in sorted(overdue, key=position_of)]

    def take_without_rest(self, key: Key) -> Waiting:
        """Remove and return a message. The ids that it still waited for are added to its lost dependencies."""
        waiting = self.take(key)
        waiting.lost.extend(reversed(waiting.unmet))
        waiting.unmet.clear()
        return waiting

    def _next_timer(self) -> int | None:
        timers = self._timers
        while timers:
            due, message_id = timers[0]
            missing = self.missing.get(message_id)
            if missing is not None and self._find_due(missing) == due:
                return due
            heapq.heappop(timers)
        return None

    def wake(self, now: int, slept_ms: int) -> None:
        """After a sleep, request each missing id once instead of repeating each request that was due, and wait longer
        by its length: nobody could answer while the participant slept. Not anew, or one that sleeps often would wait
        for ever."""
        if slept_ms > CATCH_UP_MS:
            self._awake_since = now
        for missing in self.missing.values():
            missing.due = max(missing.due, self._next_sweep(now))
            self._stop_counting(missing.lost_at)
            missing.lost_at = self._choose_loss_time(max(missing.lost_at + slept_ms, now + AWAKE_MS))
            self._ending[missing.lost_at] += 1
        self._timers = [(self._find_due(missing), missing.message_id) for missing in self.missing.values()]
        heapq.heapify(self._timers)

    def sweep(self, now: int, events: list[SdsEvent]) -> list[str]:
        """Run the sweep at ``now``: request the ids that are due, and return the ids to declare lost. Requests beyond
        the limit of one sweep are spread over the next ones, which bounds its cost."""
        interval = self._config.sweep_in_buf_interval_ms
        lost: list[str] = []
        later = self._spread_requests(now)
        while self._next_timer() == now:
            missing = self.missing[heapq.heappop(self._timers)[1]]
            if missing.lost_at <= now:
                self._lose(missing, now, events)
                lost.append(missing.message_id)
                continue
            if sweeps := later[missing.message_id]:
                missing.due = self._next_sweep(now + sweeps * interval)
            else:
                self._ask(missing, now, events)
            heapq.heappush(self._timers, (self._find_due(missing), missing.message_id))
        return lost

    def _spread_requests(self, now: int) -> dict[str, int]:
        """Missing ids whose request is due at ``now`` → how many sweeps later it is made. Senders take turns, so that
        ids that strangers invent delay few that others name."""
        due = [missing for missing in self.missing.values() if missing.due == now < missing.lost_at]
        in_turn = take_turns(sorted(due, key=attrgetter("since", "message_id")), attrgetter("charged_to"))
        of_sender, of_all = self._config.max_refetches_per_sender_and_sweep, self._config.max_refetches_per_sweep
        return {each.message_id: turn // of_sender or place // of_all for place, (turn, each) in enumerate(in_turn)}

    def _choose_loss_time(self, at: int) -> int:
        """When an id that is to be found by ``at`` is declared lost: in the first sweep from then on that has room."""
        at = self._next_sweep(at)
        while self._ending[at] >= MAX_LOST_PER_SWEEP:
            at += self._config.sweep_in_buf_interval_ms
        return at

    def _ask(self, missing: Missing, now: int, events: list[SdsEvent]) -> None:
        config = self._config
        # More would overflow a float in the end, and the longest interval is reached long before.
        wait = config.retrieve_frequency_ms * config.retrieve_backoff ** min(missing.refetches, 64)
        namings = missing.namings()
        sender_id, hint = namings[missing.refetches % len(namings)]  # the first may be junk of a stranger
        missing.refetches += 1
        missing.due = self._next_sweep(now + round(min(wait, config.retrieve_max_interval_ms)))
        events.append(RefetchDue(now, missing.message_id, hint, missing.refetches, missing.since, sender_id))

    def is_lost(self, message_id: str, named_by: str) -> bool:
        """Whether no message of the sender ``named_by`` waits for an id any more."""
        if message_id in self.lost.owners:
            return message_id not in self.missing  # it was asked for again
        return self.evicted.owners.get(message_id) == named_by

    def discard(self, message_id: str) -> bool:
        """Forget that an id was lost, evicted or before observation; returns whether it was."""
        gone = [each.discard(message_id) for each in (self.lost, self.evicted, self.before_observation)]
        return any(gone)

    def _lose(self, missing: Missing, now: int, events: list[SdsEvent], *, evicted: bool = False) -> None:
        self.remove_missing(missing.message_id)
        reported = self.evicted.discard(missing.message_id)
        (self.evicted if evicted else self.lost).add(missing.message_id, missing.charged_to)
        if reported:
            return
        watchers = sorted([self.waiting[each] for each in self._watchers.get(missing.message_id, ())], key=position_of)
        waiting = tuple(each.sds_id for each in watchers)
        events.append(
            DependencyLost(
                now,
                missing.message_id,
                missing.since,
                missing.refetches,
                missing.sender_id,
                missing.hint,
                waiting,
                evicted,
            )
        )

    @staticmethod
    def _find_due(missing: Missing) -> int:
        return min(missing.due, missing.lost_at)

    def _next_sweep(self, at: int) -> int:
        # At multiples of the interval, so that a restored or replayed channel sweeps at the same times.
        interval = self._config.sweep_in_buf_interval_ms
        return -(-at // interval) * interval


def position_of(waiting: Waiting) -> Position:
    """The order in which messages that became ready together are delivered."""
    return waiting.lamport, waiting.sds_id, waiting.sender_id
