"""Receiving, in the order of protocol.md §5: ignore, refuse, repair bookkeeping, acknowledgements, filter,
dependencies; then delivery in causal order and the cascade."""

from __future__ import annotations

import hashlib
import heapq

from reliable_channel.sds.acks import Tracked
from reliable_channel.sds.conflicts import forget_loser, known_under, second_wins
from reliable_channel.sds.dependencies import NONE, Dependencies, review_dependencies
from reliable_channel.sds.events import (
    Buffered,
    Delivered,
    DependencyBeforeObservation,
    DependencyFound,
    DuplicateSeen,
    EphemeralReceived,
    Event,
    MissingDependency,
    RefusalReason,
    Refused,
    RepairCancelled,
    RepairRequestSeen,
    RepairScheduled,
    SyncReceived,
)
from reliable_channel.sds.incoming import Missing, Waiting
from reliable_channel.sds.log import LogEntry
from reliable_channel.sds.state import ChannelState
from reliable_channel.wire.sds import SdsMessage

DIGEST_BYTES = 16
"""Of the SHA-256 of a content: enough to tell two contents of one id apart."""


def content_digest(content: bytes) -> bytes:
    """What the log keeps of a content."""
    return hashlib.sha256(content).digest()[:DIGEST_BYTES]


class Receiver:
    """Takes messages of other participants into a channel's state."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state

    def receive(
        self,
        message: SdsMessage,
        now: int,
        retrieval_hint: bytes | None,
        repaired: bool,
        data: bytes | None,
        digest: bytes | None,
        id_verified: bool | None,
    ) -> list[Event]:
        """One message; see :meth:`SdsChannel.receive`."""
        state = self._state
        events: list[Event] = []
        if message.channel_id != state.channel_id or message.sender_id == state.participant_id:
            return events
        content = message.content
        if content:
            digest = content_digest(content)
        elif digest is not None:
            digest = digest[:DIGEST_BYTES]
        lamport = message.lamport_timestamp
        if lamport is None:
            if digest is None:
                self._refuse(message, RefusalReason.INVALID_KIND, "neither timestamp nor content", now, events)
            else:
                events.append(EphemeralReceived(now, message.message_id, message.sender_id, content))
            return events
        config = state.config
        if lamport > now + config.lamport_max_ahead_ms:
            ahead = f"{lamport - now} ms ahead"
            self._refuse(message, RefusalReason.LAMPORT_TOO_FAR, ahead, now, events)
            return events
        if len(message.causal_history) > config.max_history_entries:
            named = f"{len(message.causal_history)} history entries"
            self._refuse(message, RefusalReason.HISTORY_TOO_LONG, named, now, events)
            return events
        if state.clock is None and digest is not None and state.log.forgotten((lamport, message.message_id)):
            # A channel that was forgotten begins with what is new, not with what a store brings back.
            self._refuse(message, RefusalReason.OLDER_THAN_LOG, "", now, events)
            return events
        state.open(now, lamport)
        if digest is None:
            self._receive_sync(message, lamport, now, events)
            return events
        message_id = message.message_id
        known = known_under(state, message_id)
        wins = False
        if known is not None:
            if known.digest == digest and known.lamport == lamport and known.sender_id == message.sender_id:
                self._receive_again(message, known, retrieval_hint, now, events)
                return events
            wins = second_wins(message, known, id_verified, now, events)
            if not wins:
                return events
        elif state.log.forgotten((lamport, message_id)):
            self._refuse(message, RefusalReason.OLDER_THAN_LOG, "", now, events)
            self._no_longer_missing(message, repaired, now, events)
            self.cascade(message_id, now, events)
            return events
        waiting = Waiting(
            message_id,
            message.sender_id,
            lamport,
            tuple([entry.message_id for entry in message.causal_history]),
            digest,
            content,
            retrieval_hint,
            now,
        )
        waiting.repaired = repaired
        waiting.replaces = wins and message_id in state.log
        self._receive_content(message, waiting, wins, data, now, events)
        return events

    # ---- kinds ---------------------------------------------------------------------------------------------------

    def _receive_content(
        self, message: SdsMessage, waiting: Waiting, wins: bool, data: bytes | None, now: int, events: list[Event]
    ) -> None:
        state = self._state
        incoming = state.incoming
        dependencies = review_dependencies(state, message, waiting.lamport)
        all_met = dependencies is NONE
        if not all_met and not self._affordable(message, dependencies, now, events):
            return
        message_id = waiting.message_id
        if wins:
            forget_loser(state, message_id)
        if message.repair_request:
            self._repair_bookkeeping(message, now, events)
        state.review.review(message, now, events)
        state.review.track(Tracked(message_id, waiting.sender_id, waiting.lamport, now), events, now)
        state.insert_into_filter(message_id, now, events)
        waiting.late = incoming.lost.discard(message_id) or incoming.before_observation.discard(message_id)
        missing = self._no_longer_missing(message, waiting.repaired, now, events)
        if state.repair is not None:
            state.repair.keep(message_id, data if data is not None else message)
        if not all_met:
            self._report(message, dependencies, now, events)
            waiting.lost = tuple(dependencies.lost)
            waiting.before_observation = tuple(dependencies.before_observation)
        if dependencies.unmet:
            waiting.unmet = dependencies.unmet
            incoming.hold(waiting)
            events.append(Buffered(now, message_id, waiting.sender_id, tuple(dependencies.unmet), waiting.digest))
            self._release_dependents_that_are_not_later(waiting, now, events)
        else:
            self._deliver(waiting, now, events)
        if missing is not None:
            state.review.arrived(missing, now, events)
        if not dependencies.unmet:
            self.cascade(message_id, now, events)
        self._content_heard(message, now)

    def _receive_sync(self, message: SdsMessage, lamport: int, now: int, events: list[Event]) -> None:
        state = self._state
        dependencies = review_dependencies(state, message, lamport)
        if not self._affordable(message, dependencies, now, events):
            return
        events.append(SyncReceived(now, message.message_id, message.sender_id, lamport))
        self._repair_bookkeeping(message, now, events)
        state.review.review(message, now, events)
        self._report(message, dependencies, now, events)
        if state.sync is not None:
            state.sync.named([entry.message_id for entry in message.causal_history], message.sender_id)
            state.sync.restart(now, state.repairs_pending())

    def _receive_again(
        self, message: SdsMessage, known: LogEntry | Waiting, hint: bytes | None, now: int, events: list[Event]
    ) -> None:
        """A copy: only what it newly acknowledges counts, and that its envelope is the newest. Someone has answered, if
        a repair request was open."""
        state = self._state
        events.append(DuplicateSeen(now, message.message_id, message.sender_id))
        if hint is not None:
            known.set_hint(hint)
        state.review.review(message, now, events)
        if state.repair is not None and state.repair.cancel(message.message_id):
            events.append(RepairCancelled(now, message.message_id, "answered"))
        self._content_heard(message, now)

    def _content_heard(self, message: SdsMessage, now: int) -> None:
        """Content is here, new or once more: it has to be acknowledged, and what it names is acknowledged by it."""
        sync = self._state.sync
        if sync is not None:
            sync.named([entry.message_id for entry in message.causal_history], message.sender_id)
            sync.owe(message.message_id, message.sender_id, now)
            sync.content_heard(now, self._state.repairs_pending())

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _affordable(self, message: SdsMessage, found: Dependencies, now: int, events: list[Event]) -> bool:
        """Bounds come before any effect: what is refused changes nothing."""
        incoming, config = self._state.incoming, self._state.config
        if found.new and len(found.new) > incoming.budget_left(message.sender_id):
            detail = f"{len(found.new)} more missing ids"
            self._refuse(message, RefusalReason.MISSING_BUDGET, detail, now, events)
            return False
        size = len(message.content or b"")
        if found.unmet and (
            len(incoming.waiting) >= config.max_waiting or incoming.waiting_bytes + size > config.max_waiting_bytes
        ):
            self._refuse(message, RefusalReason.INCOMING_BUFFER_FULL, "", now, events)
            return False
        return True

    def _repair_bookkeeping(self, message: SdsMessage, now: int, events: list[Event]) -> None:
        state = self._state
        repair = state.repair
        for entry in message.repair_request[: state.config.max_history_entries]:
            wanted = state.log.get(entry.message_id)
            by, via = message.sender_id, message.message_id
            events.append(RepairRequestSeen(now, entry.message_id, by, via, wanted is not None))
            if repair is None:
                continue
            if repair.asked_by_another(entry.message_id, now):
                events.append(RepairCancelled(now, entry.message_id, "requested"))
            sender_id = wanted.sender_id if wanted is not None else entry.sender_id
            if wanted is not None and sender_id is not None:
                due = repair.schedule(entry.message_id, sender_id, now)
                if due is not None:
                    events.append(RepairScheduled(now, entry.message_id, due))

    def _no_longer_missing(self, message: SdsMessage, repaired: bool, now: int, events: list[Event]) -> Missing | None:
        state = self._state
        missing = state.incoming.found(message.message_id)
        if missing is not None:
            events.append(DependencyFound(now, message.message_id, missing.since, missing.refetches, repaired=repaired))
            if state.repair is not None:
                state.repair.unwant(message.message_id)
        return missing

    def _report(self, message: SdsMessage, found: Dependencies, now: int, events: list[Event]) -> None:
        """New missing ids, once each; and what is refused or before observation."""
        state = self._state
        for dependency in found.not_causal:
            self._refuse(message, RefusalReason.NOT_CAUSAL, dependency, now, events)
        for dependency in found.new_before_observation:
            state.incoming.before_observation.add(dependency)
            events.append(DependencyBeforeObservation(now, dependency, message.message_id))
        sender_id = message.sender_id
        for entry in found.new:
            missing = state.incoming.miss(entry, sender_id, now)
            events.append(
                MissingDependency(now, entry.message_id, message.message_id, sender_id, missing.hint, missing.sender_id)
            )
            if state.repair is not None:
                state.repair.want(entry.message_id, missing.sender_id, now)
        for dependency in found.missing:
            state.incoming.missing[dependency].reached[sender_id] = (message.message_id, True)

    def _release_dependents_that_are_not_later(self, waiting: Waiting, now: int, events: list[Event]) -> None:
        """What waits for this message must come after it, or two forged messages would wait for each other for ever."""
        state = self._state
        for dependent in state.incoming.dependents(waiting.message_id):
            if dependent.lamport > waiting.lamport:
                continue
            events.append(
                Refused(now, dependent.message_id, dependent.sender_id, RefusalReason.NOT_CAUSAL, waiting.message_id)
            )
            if state.incoming.release(dependent.message_id, waiting.message_id):
                state.incoming.take(dependent.message_id)
                self._deliver(dependent, now, events)
                self.cascade(dependent.message_id, now, events)

    # ---- delivery ------------------------------------------------------------------------------------------------

    def _deliver(self, waiting: Waiting, now: int, events: list[Event]) -> None:
        state = self._state
        if waiting.lamport > (state.clock or 0):
            state.clock = waiting.lamport
        state.sequence += 1
        if state.sync is not None:
            state.sync.owe(waiting.message_id, waiting.sender_id, now)
        state.log.add(
            LogEntry(
                waiting.message_id,
                waiting.lamport,
                waiting.sender_id,
                waiting.history,
                waiting.digest,
                waiting.hint,
                waiting.past,
            )
        )
        events.append(
            Delivered(
                now,
                waiting.message_id,
                waiting.sender_id,
                waiting.lamport,
                state.sequence,
                waiting.received_at,
                waiting.content,
                waiting.hint,
                waiting.lost,
                waiting.before_observation,
                waiting.late,
                waiting.repaired,
                waiting.replaces,
                waiting.digest,
            )
        )

    def cascade(self, message_id: str, now: int, events: list[Event]) -> None:
        """Deliver at once, in causal order, what waited for an id that is in the log now (or given up)."""
        incoming = self._state.incoming
        ready = incoming.met(message_id)
        if not ready:
            return
        heap = [(waiting.lamport, waiting.message_id) for waiting in ready]
        heapq.heapify(heap)
        by_id = {waiting.message_id: waiting for waiting in ready}
        while heap:
            waiting = by_id.pop(heapq.heappop(heap)[1])
            self._deliver(waiting, now, events)
            for released in incoming.met(waiting.message_id):
                by_id[released.message_id] = released
                heapq.heappush(heap, (released.lamport, released.message_id))

    def give_up(self, lost: list[str], now: int, events: list[Event]) -> None:
        """Deliver what waited for lost ids, with that stated."""
        state = self._state
        for message_id in lost:
            if state.repair is not None:
                state.repair.unwant(message_id)
            for dependent in state.incoming.dependents(message_id):
                dependent.lost = (*dependent.lost, message_id)
        for message_id in lost:
            self.cascade(message_id, now, events)

    @staticmethod
    def _refuse(message: SdsMessage, reason: RefusalReason, detail: str, now: int, events: list[Event]) -> None:
        events.append(Refused(now, message.message_id, message.sender_id, reason, detail))
