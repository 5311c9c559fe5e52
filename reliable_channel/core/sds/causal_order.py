"""Delivers messages in causal order: each when it waits for nothing more, or a bound or time-out ends the wait."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterable

from reliable_channel.core.sds.events import Delivered, Evicted, Memory, MessageRefused, RefusalReason, SdsEvent
from reliable_channel.core.sds.incoming import Position, Waiting, position_of
from reliable_channel.core.sds.log import LogEntry
from reliable_channel.core.sds.state import ChannelState

_TIES = itertools.count()
"""Breaks ties in heaps, so that messages themselves are never compared."""


class CausalOrder:
    """Delivers the messages of a channel's incoming buffer."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state

    def deliver(self, waiting: Waiting, now: int, events: list[SdsEvent]) -> None:
        """Deliver a message that is no longer in the buffer, whatever it still waited for."""
        state, in_log = self._state, self._state.log.holds
        if waiting.lamport > (state.clock or 0):
            state.follow(waiting.lamport, now)
        state.sequence += 1
        if state.sync is not None:
            state.sync.await_acknowledgement(waiting.sds_id, now)
        self._add_to_log(waiting, now)
        if state.repair is not None:
            state.repair.renew(waiting.sds_id)
        events.append(
            Delivered(
                now,
                waiting.sds_id,
                waiting.sender_id,
                waiting.lamport,
                state.sequence,
                waiting.received_at,
                waiting.content,
                waiting.hint,
                # It may have waited on, and they have come meanwhile.
                tuple(each for each in waiting.lost if not in_log(each)),
                tuple(each for each in waiting.before_observation if not in_log(each)),
                waiting.late,
                waiting.repaired,
                waiting.replaces,
                waiting.digest,
                waiting.is_further_send,
            )
        )

    def _add_to_log(self, waiting: Waiting, now: int) -> None:
        """Put a message into the log. The log holds the latest of several sends of one id; the others are
        remembered."""
        state = self._state
        message_id = waiting.sds_id
        entry = LogEntry(
            message_id,
            waiting.lamport,
            waiting.sender_id,
            waiting.history,
            waiting.digest,
            waiting.hint,
            waiting.past,
        )
        entry.verified, entry.won = waiting.verified, waiting.won
        doubted = message_id in state.unproven.doubts
        if waiting.unproven and doubted:
            state.unproven.record_delivery(message_id, entry)
            return
        if waiting.unproven or doubted:  # it, or the message it repeats, never owns the id
            state.repeats.add((waiting.lamport, message_id, waiting.sender_id), now)
            return
        before = state.log.get(message_id) if state.log.holds(message_id) else None
        if before is not None:
            # Not by arrival: participants and rebuilds see sends in other orders (docs/decisions.md, *Batch cuts do
            # not matter*).
            other = min((entry, before), key=lambda each: (each.lamport, each.sender_id))
            state.repeats.add((other.lamport, message_id, other.sender_id), now)
            if other is entry:
                return
            entry.verified, entry.won = entry.verified or before.verified, entry.won or before.won
            state.log.remove(message_id)
        state.log.add(entry, now)

    def settle(self, message_ids: Iterable[str], now: int, events: list[SdsEvent], *, past: bool = False) -> None:
        """Deliver, in causal order, the messages that wait for nothing else now that these ids are in the log, held, or
        declared lost. ``past``: the ids count as met although they are not in the log."""
        incoming = self._state.incoming
        if not incoming.waiting:
            return
        heap: list[tuple[Position, int, Waiting]] = []
        for message_id in message_ids:
            self._release_watchers(message_id, heap, now, events, past=past)
        # Each stays in the buffer until its turn, and a held dependency counts only if its Lamport timestamp is lower:
        # with forged references in a cycle no message waits for itself, and none is looked up after it has left.
        while heap:
            waiting = incoming.take(heapq.heappop(heap)[-1].key)
            self.deliver(waiting, now, events)
            self._release_watchers(waiting.sds_id, heap, now, events)

    def _release_watchers(
        self,
        message_id: str,
        heap: list[tuple[Position, int, Waiting]],
        now: int,
        events: list[SdsEvent],
        *,
        past: bool = False,
    ) -> None:
        """Put the messages that waited for nothing but this id into the heap; report dependencies that are not
        causal."""
        state = self._state
        ready, not_causal = state.incoming.settle(message_id, state.log, state.unproven.meets, past=past)
        for waiting, dependency in not_causal:
            reason = RefusalReason.NOT_CAUSAL
            events.append(MessageRefused(now, waiting.sds_id, waiting.sender_id, reason, dependency))
        for waiting in ready:
            heapq.heappush(heap, (position_of(waiting), next(_TIES), waiting))

    def give_up(self, lost: list[str], now: int, events: list[SdsEvent]) -> None:
        """Deliver the messages that waited for lost ids, or too long, with what they still waited for listed as
        lost."""
        repair = self._state.repair
        if repair is not None:
            for message_id in lost:
                repair.unwant(message_id)
        self.settle(lost, now, events)
        incoming = self._state.incoming
        for key in incoming.list_overdue(now):
            if key in incoming.waiting:  # else one before it was what it waited for
                waiting = incoming.take_without_rest(key)
                self.deliver(waiting, now, events)
                self.settle([waiting.sds_id], now, events)

    def make_room(self, given_up: dict[str, str], now: int, events: list[SdsEvent]) -> None:
        """Bring the incoming buffer back within its bounds, by delivering messages of the senders that use most of
        it."""
        incoming = self._state.incoming
        if not given_up and not incoming.is_full():
            return
        if given_up:
            # Sorted: a replay reports the same events in the same order.
            owners = Counter(given_up.values())
            events.extend([Evicted(now, Memory.MISSING, owner, count) for owner, count in sorted(owners.items())])
            self.settle(given_up, now, events)
        evicted: Counter[str] = Counter()
        while (waiting := incoming.take_surplus()) is not None:
            evicted[waiting.sender_id] += 1
            self.deliver(waiting, now, events)
            self.settle([waiting.sds_id], now, events)
        events.extend([Evicted(now, Memory.WAITING, owner, count) for owner, count in sorted(evicted.items())])
