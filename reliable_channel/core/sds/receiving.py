"""Receives messages in the steps of the SDS specification, *Receive Message*: ignore, refuse, repair bookkeeping,
acknowledgements, filter, dependencies. What depends on nothing that is missing is delivered (:mod:`.causal_order`).

Whether a message is refused depends on the message alone, never on how much of the bounded memory other senders use."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

from reliable_channel.core.sds.causal_order import CausalOrder
from reliable_channel.core.sds.conflicts import (
    COPY,
    FURTHER_SEND,
    LOSER,
    NEW,
    WINNER,
    Relation,
    find_copy,
    find_known,
    forget_loser,
    relation,
)
from reliable_channel.core.sds.dependencies import NONE, Dependencies, review_dependencies
from reliable_channel.core.sds.events import (
    Buffered,
    Delivered,
    DependencyBeforeObservation,
    DependencyFound,
    DuplicateSeen,
    EphemeralReceived,
    MessageRefused,
    MissingDependency,
    RefusalReason,
    RepairCancelled,
    RepairRequestSeen,
    RepairScheduled,
    SdsEvent,
)
from reliable_channel.core.sds.incoming import Missing, Waiting
from reliable_channel.core.sds.keys import SendKey
from reliable_channel.core.sds.log import LogEntry, keep_history
from reliable_channel.core.sds.state import ChannelState
from reliable_channel.core.sds.unproven import Doubt
from reliable_channel.core.sds.verify import SEARCHED_BYTES, is_sync_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily

DIGEST_BYTES = 16
"""The kept prefix of a content's SHA-256: enough to distinguish two contents with one id."""


MAX_SYNC_SEARCHES = 20
"""Dependencies of one message that are checked for being sync messages."""


def content_digest(content: bytes) -> bytes:
    """The digest of a content that the log stores."""
    return hashlib.sha256(content).digest()[:DIGEST_BYTES]


@dataclass(slots=True)
class IncomingMessage:
    """A message of another participant on its way through the steps; :meth:`SdsChannel.receive` explains the
    fields."""

    message: SdsMessage
    now: int
    hint: bytes | None
    repaired: bool = False
    data: bytes | None = None
    digest: bytes | None = None
    """Of the content, if the caller stores it elsewhere."""
    id_verified: bool | None = None
    content_bytes: int | None = None
    declined: bool = False
    events: list[SdsEvent] = field(default_factory=list)
    """What the steps report."""


class SdsReceiver:
    """Applies messages of other participants to a channel's state."""

    def __init__(self, state: ChannelState, order: CausalOrder) -> None:
        self._state, self._order = state, order

    def receive(self, arrival: IncomingMessage) -> list[SdsEvent]:
        """Process one message in the order of the specification: ignore, refuse, then what its kind asks for."""
        state, message = self._state, arrival.message
        now, events = arrival.now, arrival.events
        if message.channel_id != state.channel_id:
            return events
        # Own messages acknowledge nothing (docs/spec/sds.md, *Known mistakes of implementations*).
        if message.sender_id == state.participant_id:
            # Of a state that was lost, and named without a sender. The id binds the sender, so it is no stranger's.
            if arrival.id_verified and message.message_id in state.incoming.missing:
                self.note_sync(message.message_id, message.sender_id, now, events)
            return events
        content, lamport, config = message.content, message.lamport_timestamp, state.config
        digest = content_digest(content) if content else arrival.digest
        if lamport is None:
            self._receive_ephemeral(arrival, digest)
        # One timestamp of 2^64 − 1 would make the channel unusable (docs/spec/sds.md, *Bounds*). Most are not ahead of
        # time at all, which costs less to see than the whole rule.
        elif lamport > now // config.clock_unit_ms and not state.accepts(lamport, now):
            ahead = f"{(lamport - state.clock_time(now)) * config.clock_unit_ms} ms ahead"
            self._refuse(message, RefusalReason.LAMPORT_TOO_FAR, ahead, now, events)
        elif len(message.causal_history) > config.max_history_entries:
            named = f"{len(message.causal_history)} history entries"
            self._refuse(message, RefusalReason.HISTORY_TOO_LONG, named, now, events)
        elif (first := state.clock is None) and not self._open(arrival, lamport, digest):
            self._refuse(message, RefusalReason.OLDER_THAN_LOG, "", now, events)
        elif digest is None:
            self._receive_sync(arrival, lamport, first)
        elif arrival.declined and find_known(state, message.message_id) is None:
            self._decline(message, now, events)
        else:
            self._receive_content(arrival, lamport, digest, first)
        return events

    def _open(self, arrival: IncomingMessage, lamport: int, digest: bytes | None) -> bool:
        """Begin to observe with this message, unless it is old: a channel that was forgotten starts with new messages,
        not with old ones from a store."""
        message = arrival.message
        if digest is not None and self._state.log.may_have_forgotten((lamport, message.message_id), message.sender_id):
            return False
        self._state.open(arrival.now, lamport)
        return True

    # ---- kinds ---------------------------------------------------------------------------------------------------

    def _receive_ephemeral(self, arrival: IncomingMessage, digest: bytes | None) -> None:
        message, now, events = arrival.message, arrival.now, arrival.events
        if digest is None:
            self._refuse(message, RefusalReason.INVALID_KIND, "neither timestamp nor content", now, events)
        else:
            events.append(EphemeralReceived(now, message.message_id, message.sender_id, message.content))

    def _receive_content(self, arrival: IncomingMessage, lamport: int, digest: bytes, first: bool) -> None:
        """Process content by its relation to the message with its id that is known here, if one is."""
        state, message, now = self._state, arrival.message, arrival.now
        message_id, log, events = message.message_id, state.log, arrival.events
        known, kind = None, NEW
        # The usual message is new in a channel where nothing waits: then no look-up by three kinds of keys.
        if log.holds(message_id) or state.incoming.waiting or state.repeats.sends or state.unproven.doubts:
            known = find_known(state, message_id)
            kind = relation(state, message, digest, known, arrival.id_verified, now, events)
        if kind is NEW:
            if log.may_have_forgotten((lamport, message_id), message.sender_id):
                self._refuse(message, RefusalReason.OLDER_THAN_LOG, "", now, events)
                self._remove_missing(message_id, arrival.repaired, now, events)
                # It may have been delivered before, so nothing may wait for it (docs/sds.md, *Decisions*).
                self._order.settle([message_id], now, events, past=True)
                return
            if self._deliver_in_order(arrival, lamport, digest):
                return
        elif kind is COPY:
            self._receive_again(arrival, known, digest)
            return
        elif kind is LOSER:
            return
        elif kind is FURTHER_SEND and (
            state.repeats.may_have_forgotten((lamport, message_id, message.sender_id))
            or log.may_have_forgotten((lamport, message_id), message.sender_id)
        ):
            self._refuse(message, RefusalReason.OLDER_THAN_LOG, "", now, events)
            return
        self._accept(arrival, self._make_waiting(arrival, lamport, digest, known, kind), first)

    def _make_waiting(
        self, arrival: IncomingMessage, lamport: int, digest: bytes, known: LogEntry | Waiting | None, kind: Relation
    ) -> Waiting:
        message, wins, is_further = arrival.message, kind is WINNER, kind is FURTHER_SEND
        unproven = arrival.id_verified is False and self._state.config.unproven_id_ms > 0 and not is_further
        message_id, sender_id = message.message_id, message.sender_id
        waiting = Waiting(
            # No text, so that no id in a history, repair request or filter can name it.
            SendKey(message_id, sender_id, lamport) if is_further or unproven else message_id,
            sender_id,
            lamport,
            keep_history(message.causal_history),
            digest,
            message.content,
            arrival.hint,
            arrival.now,
        )
        waiting.repaired = arrival.repaired
        waiting.replaces = wins and isinstance(known, LogEntry)
        waiting.verified, waiting.won = wins or bool(arrival.id_verified), wins
        waiting.unproven = unproven
        return waiting

    def _deliver_in_order(self, arrival: IncomingMessage, lamport: int, digest: bytes) -> bool:
        """Deliver new content at once if all its dependencies are in the log, it was not missing, and its id needs no
        proof: :meth:`_accept`, shortened for the usual message. Returns whether that was so."""
        state, message, id_verified = self._state, arrival.message, arrival.id_verified
        message_id, history = message.message_id, message.causal_history
        if message_id in state.incoming.missing or (id_verified is False and state.config.unproven_id_ms > 0):
            return False
        in_log = state.log.holds
        for entry in history:
            if not in_log(entry.message_id):
                return False
        now, events = arrival.now, arrival.events
        sender_id, hint, verified = message.sender_id, arrival.hint, id_verified is True
        self._apply_content(message, verified, now, events)
        late = self._accept_as_owner(arrival)
        if lamport > (state.clock or 0):
            state.follow(lamport, now)
        state.sequence += 1
        record = LogEntry(message_id, lamport, sender_id, keep_history(history), digest, hint)
        record.verified = verified
        state.log.add(record, now)
        content, sequence, repaired = message.content, state.sequence, arrival.repaired
        events.append(
            Delivered(
                now, message_id, sender_id, lamport, sequence, now, content, hint, (), (), late, repaired, False, digest
            )
        )
        if state.incoming.waiting:
            self._order.settle([message_id], now, events)
            self._order.make_room({}, now, events)
        if state.sync is not None:
            self._update_sync_timer(message, now, owed=True)
        return True

    def _apply_content(self, message: SdsMessage, verified: bool, now: int, events: list[SdsEvent]) -> None:
        """Process what content implies about other messages and its sender."""
        if message.repair_request:
            self._repair_bookkeeping(message, now, events)
        review = self._state.review
        review.review(message, now, events)
        if verified:
            review.participants.record_proof(message.sender_id)

    def _accept_as_owner(self, arrival: IncomingMessage) -> bool:
        """Accept content as the owner of its id. Returns whether it is late: it was declared lost, or before
        observation."""
        state, message, now, events = self._state, arrival.message, arrival.now, arrival.events
        message_id, sender_id = message.message_id, message.sender_id
        state.review.track(message_id, sender_id, message.lamport_timestamp or 0, now, now, events)
        if state.filter is not None:
            state.insert_into_filter(message_id, now, events)
        if not arrival.repaired:
            self._keep_for_answers(arrival)
        incoming = state.incoming
        return bool(incoming.lost.owners or incoming.evicted.owners or incoming.before_observation.owners) and (
            incoming.discard(message_id)
        )

    def _accept(self, arrival: IncomingMessage, waiting: Waiting, first: bool) -> None:
        """Accept content under its id: apply what it implies, then deliver it or let it wait for its dependencies."""
        state, message, now, events = self._state, arrival.message, arrival.now, arrival.events
        incoming = state.incoming
        unproven = waiting.unproven
        self._recognize_syncs(message, now, events)
        dependencies = review_dependencies(state, message, waiting.lamport, now, first=first, unproven=unproven)
        message_id, further = waiting.sds_id, waiting.is_further_send
        if waiting.won:
            forget_loser(state, message_id)
        self._apply_content(message, waiting.verified, now, events)
        missing = None
        if unproven:
            size = len(message.content) if message.content else arrival.content_bytes or 0
            doubt = Doubt(waiting, now, now + state.config.unproven_id_ms, size <= SEARCHED_BYTES)
            state.unproven.add(message_id, doubt)
        elif not further:
            waiting.late = self._accept_as_owner(arrival)
            missing = self._remove_missing(message_id, waiting.repaired, now, events)
        given_up: dict[str, str] = {}
        if dependencies is not NONE:
            for dependency in dependencies.not_causal:
                self._refuse(message, RefusalReason.NOT_CAUSAL, dependency, now, events)
            given_up = self._report(message, dependencies, now, events)
            waiting.lost = dependencies.lost
            waiting.before_observation = tuple(dependencies.before_observation)
            waiting.unmet = [*reversed(dependencies.unmet)]
        if waiting.unmet:
            incoming.hold(waiting)
            events.append(
                Buffered(now, message_id, waiting.sender_id, tuple(dependencies.unmet), waiting.digest, further)
            )
            # A message that names it and is not later does not wait for it.
            self._order.settle([message_id], now, events)
        else:
            self._order.deliver(waiting, now, events)
        if missing is not None:
            state.review.record_arrival(missing, now, events)
        if incoming.waiting and (unproven or state.log.holds(message_id)):
            self._order.settle([message_id], now, events)
        while unproven and (surplus := state.unproven.surplus()) is not None:
            self.end_doubt(surplus, now, events)
        if given_up or incoming.waiting:
            self._order.make_room(given_up, now, events)
        self._update_sync_timer(message, now, owed=missing is None or set(missing.reached) <= {message.sender_id})

    def _receive_sync(self, arrival: IncomingMessage, lamport: int, first: bool) -> None:
        """Process a sync message: what it names, lacks and acknowledges counts as that of content; it is not delivered
        and waits for nothing."""
        state, message, now, events = self._state, arrival.message, arrival.now, arrival.events
        self._recognize_syncs(message, now, events)
        dependencies = review_dependencies(state, message, lamport, now, first=first)
        self._repair_bookkeeping(message, now, events)
        state.review.review(message, now, events)
        self._order.make_room(self._report(message, dependencies, now, events), now, events)
        if arrival.id_verified is not False:  # the id is no digest of a content, so dependencies on it are met
            self.note_sync(message.message_id, message.sender_id, now, events)
            if state.repair is not None and state.config.wire_family is WireFamily.NIM:  # its peers ask for syncs too
                state.repair.keep(message.message_id, arrival.data if arrival.data is not None else message)
        if state.sync is not None:
            state.sync.remove_named(message.causal_history, message.sender_id)
            state.sync.restart(now)

    def _recognize_syncs(self, message: SdsMessage, now: int, events: list[SdsEvent]) -> None:
        """Find unknown dependencies that are sync messages of this project's senders: their ids can be recomputed, so
        nobody needs to wait for them. Only nim-sds peers name sync messages."""
        state = self._state
        if state.config.wire_family is not WireFamily.NIM:
            return
        below, searched = message.lamport_timestamp or 0, 0
        for entry in message.causal_history:
            sds_id, sender_id = entry.message_id, entry.sender_id
            # Searching takes 0.5 ms, and a stranger chooses how many unknown ids a history has.
            if sender_id and not state.log.holds(sds_id) and sds_id not in state.incoming.syncs:
                searched += 1
                if searched > MAX_SYNC_SEARCHES:
                    return
                if is_sync_id(sds_id, sender_id, below):
                    self.note_sync(sds_id, sender_id, now, events)

    def _decline(self, message: SdsMessage, now: int, events: list[SdsEvent]) -> None:
        """Process content that its receiver cannot use: its acknowledgements count, it enters neither log nor filter,
        and no message waits for it."""
        state = self._state
        self._apply_content(message, False, now, events)
        # As if it were lost already: nothing waits for it, now or later.
        state.incoming.lost.add(message.message_id, message.sender_id)
        if state.incoming.remove_missing(message.message_id) is not None and state.repair is not None:
            state.repair.unwant(message.message_id)
        self._order.settle([message.message_id], now, events)
        if state.sync is not None:
            state.sync.remove_named(message.causal_history, message.sender_id)

    def ask_for(self, message_ids: Iterable[str], sender_id: str, via: str, now: int, events: list[SdsEvent]) -> None:
        """Count ids as missing that ``via``, a message of ``sender_id``, names; also those from before observation."""
        state = self._state
        incoming = state.incoming
        for message_id in message_ids:
            if find_known(state, message_id) or message_id in incoming.missing or message_id in incoming.syncs:
                continue
            incoming.miss(HistoryEntry(message_id, None, sender_id), sender_id, now)
            events.append(MissingDependency(now, message_id, via, sender_id, None, sender_id))
            if state.repair is not None:
                state.repair.want(message_id, sender_id, now)
        self._order.make_room(self._drop_surplus_missing(sender_id, now, events), now, events)

    def note_sync(self, message_id: str, sender_id: str, now: int, events: list[SdsEvent]) -> None:
        """Record a message that meets dependencies and is not delivered: a sync message, which nim-sds peers name in
        histories, or an own one of a lost state."""
        incoming = self._state.incoming
        incoming.syncs.add(message_id, sender_id)
        incoming.discard(message_id)
        if self._remove_missing(message_id, False, now, events) is not None:
            self._order.settle([message_id], now, events)

    def _receive_again(self, arrival: IncomingMessage, known: LogEntry | Waiting | None, digest: bytes) -> None:
        """Process a copy: only its new acknowledgements count, and its envelope hash as the newest. It also answers an
        open repair request."""
        state, message, now, events, hint = self._state, arrival.message, arrival.now, arrival.events, arrival.hint
        events.append(DuplicateSeen(now, message.message_id, message.sender_id))
        if hint is not None and known is not None:
            known.set_hint(hint)
        state.review.review(message, now, events)
        names_more = (
            known is not None and message.causal_history and keep_history(message.causal_history) != known.history
        )
        # Nothing binds a history to an id: a stranger's early copy must neither hold a message for an id that never
        # existed, nor hide an id that is missing (docs/sds.md, *Two messages with one id*).
        waiting = find_copy(state, message, digest)
        if waiting is not None and waiting.unmet:
            self._wait_for_less(arrival, waiting)
        if known is not None and names_more:
            self._add_history(arrival, known)
        answers = state.repair is not None and state.repair.cancel(message.message_id)
        if answers:
            events.append(RepairCancelled(now, message.message_id, "answered"))
        # A copy that answers a repair request does not mean that its sender waits for an acknowledgement. With nim-sds
        # most copies are such answers: it broadcasts a message once and then only answers requests for it.
        owed = not answers and state.config.wire_family is not WireFamily.NIM
        self._update_sync_timer(message, now, owed=owed)

    def _wait_for_less(self, arrival: IncomingMessage, waiting: Waiting) -> None:
        """Let a held message wait only for what this copy of it names too, and deliver it if that is nothing."""
        state, message, now, events = self._state, arrival.message, arrival.now, arrival.events
        before = len(waiting.unmet)
        is_ready = state.incoming.narrow(waiting, {entry.message_id for entry in message.causal_history})
        # An own answer to a repair request must not hold others up for an id that never existed.
        if len(waiting.unmet) < before and state.repair is not None and waiting.key == waiting.sds_id:
            state.repair.forget(waiting.sds_id)
            self._keep_for_answers(arrival)
        if is_ready:
            self._order.deliver(state.incoming.take(waiting.key), now, events)
            self._order.settle([waiting.sds_id], now, events)
        elif len(waiting.unmet) < before:  # what is left may have come while it watched for what is gone
            self._order.settle([waiting.unmet[-1]], now, events)

    def _add_history(self, arrival: IncomingMessage, known: LogEntry | Waiting) -> None:
        """Process the history of a message that was rebuilt before it arrived, or of which a copy named others: unknown
        ids in it become missing, on account of its sender, but the message itself does not wait for them."""
        log, message, now, events = self._state.log, arrival.message, arrival.now, arrival.events
        if not known.history:
            known.set_history(keep_history(message.causal_history))
            if known.verified:  # rebuilt, and so neither kept until now nor asking
                self._keep_for_answers(arrival)
                self._repair_bookkeeping(message, now, events)
            if isinstance(known, LogEntry) and log.get(known.message_id) is known:  # it now counts more bytes
                log.remove(known.message_id)
                log.add(known, now)
        dependencies = review_dependencies(self._state, message, known.lamport, now)
        if dependencies is not NONE:
            self._order.make_room(self._report(message, dependencies, now, events), now, events)

    def _keep_for_answers(self, arrival: IncomingMessage) -> None:
        """Keep the original bytes of a message for answers to repair requests. Of a rebuilt one there are none: without
        its history it would release the copies of it that wait elsewhere (:meth:`_wait_for_less`)."""
        repair, message = self._state.repair, arrival.message
        if repair is not None:
            repair.keep(message.message_id, arrival.data if arrival.data is not None else message)

    def _update_sync_timer(self, message: SdsMessage, now: int, owed: bool) -> None:
        """Process new or repeated content for the sync timer: it acknowledges what it names, and it must itself be
        acknowledged if nobody else has done so (``owed``)."""
        sync = self._state.sync
        if sync is not None:
            sync.remove_named(message.causal_history, message.sender_id)
            # Naming an unproven id would acknowledge the message that the id belongs to.
            if owed and message.message_id not in self._state.unproven.doubts:
                sync.owe(message.message_id, message.sender_id)
                if self._state.log.holds(message.message_id):
                    sync.await_acknowledgement(message.message_id, now)
            sync.restart_after_content(now)

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _repair_bookkeeping(self, message: SdsMessage, now: int, events: list[SdsEvent]) -> None:
        """Process the repair requests that a message carries: withdraw own ones for the same ids, and plan answers."""
        state = self._state
        repair = state.repair
        by, via = message.sender_id, message.message_id
        requested: dict[str, HistoryEntry] = {}
        for entry in message.repair_request[: state.config.max_history_entries]:
            requested.setdefault(entry.message_id, entry)
        for entry in requested.values():
            wanted: LogEntry | Waiting | None = state.log.get(entry.message_id)
            events.append(RepairRequestSeen(now, entry.message_id, by, via, wanted is not None, entry.sender_id))
            if repair is None:
                continue
            # Postponing the own request is not enough (docs/spec/sds.md, *Repair*).
            if repair.cancel_request(entry.message_id, now):
                events.append(RepairCancelled(now, entry.message_id, "requested"))
            # What waits here too: what it waits for may be irretrievable, and nobody else may have it.
            wanted = wanted or state.incoming.waiting.get(entry.message_id)
            sender_id = wanted.sender_id if wanted is not None else state.incoming.syncs.owners.get(entry.message_id)
            # What waits for its turn leaves anyway, and not before others of this sender as control traffic.
            if sender_id is not None and not state.outgoing.is_queued(entry.message_id):
                due = repair.schedule(entry.message_id, sender_id, by, now)
                if due is not None:
                    events.append(RepairScheduled(now, entry.message_id, due))

    def _remove_missing(self, message_id: str, repaired: bool, now: int, events: list[SdsEvent]) -> Missing | None:
        state = self._state
        missing = state.incoming.remove_missing(message_id)
        if missing is not None:
            events.append(DependencyFound(now, message_id, missing.since, missing.refetches, repaired=repaired))
            if state.repair is not None:
                state.repair.unwant(message_id)
        return missing

    def _report(
        self, message: SdsMessage, dependencies: Dependencies, now: int, events: list[SdsEvent]
    ) -> dict[str, str]:
        """Report new missing ids, once each, and dependencies before observation. Returns the missing ids that were
        declared lost because too many are missing, with the sender they were charged to; those that this message names
        are added to its lost dependencies."""
        state = self._state
        incoming = state.incoming
        sender_id = message.sender_id
        for dependency in dependencies.new_before_observation:
            incoming.before_observation.add(dependency, sender_id)
            events.append(DependencyBeforeObservation(now, dependency, message.message_id))
        given_up: dict[str, str] = {}
        for entry in dependencies.new:
            missing = incoming.miss(entry, sender_id, now)
            events.append(
                MissingDependency(now, entry.message_id, message.message_id, sender_id, missing.hint, missing.sender_id)
            )
            given_up |= self._drop_surplus_missing(sender_id, now, events)
        # Reversed, so that of two entries with one id the first counts.
        entries = (
            {entry.message_id: entry for entry in reversed(message.causal_history)} if dependencies.missing else {}
        )
        for dependency in dependencies.missing:
            still_missing = incoming.missing.get(dependency)
            if still_missing is None:  # a bound has just given it up
                dependencies.unmet.pop(dependency, None)
                dependencies.lost.append(dependency)
                continue
            incoming.record_naming(still_missing, entries[dependency], sender_id)
            incoming.reach(still_missing, sender_id, message.message_id, directly=True)
            if state.repair is not None and dependency not in state.repair.requests:
                state.repair.want(dependency, still_missing.sender_id, now)
        # The answer to another's request may have been lost on its way here. A message that asks itself is no reason:
        # its own request has just removed the one here.
        if state.repair is not None and dependencies.unmet and not message.repair_request:
            state.repair.want_again(now)
        given_up |= self._drop_surplus_missing(sender_id, now, events)
        return given_up

    def _drop_surplus_missing(self, sender_id: str, now: int, events: list[SdsEvent]) -> dict[str, str]:
        """Declare missing ids beyond the bounds of the sender or the channel lost."""
        state = self._state
        given_up = state.incoming.drop_surplus_missing(sender_id, now, events)
        if state.repair is not None:
            for message_id in given_up:
                state.repair.unwant(message_id)
        return given_up

    # ---- doubts -----------------------------------------------------------------------------------------------------

    def end_doubts(self, now: int, events: list[SdsEvent]) -> None:
        """Accept the unproven messages whose time is up as the owners of their ids."""
        while (due := self._state.unproven.next_due()) is not None and due <= now:
            self.end_doubt(self._state.unproven.items()[0][0], now, events)

    def end_doubt(self, message_id: str, now: int, events: list[SdsEvent]) -> None:
        """Accept an unproven message as the owner of its id, unless something shows that it cannot be."""
        state = self._state
        doubt = state.unproven.take(message_id)
        if doubt is None:
            return
        record = doubt.record
        missed = state.incoming.missing.get(message_id)
        # A history entry that names another sender does not name this message; and a sender of which one id was
        # recomputed uses no unknown scheme (docs/sds.md, *Unproven ids*).
        named = missed is None or missed.may_be_of(record.sender_id)
        if not named or (doubt.refuted and state.review.participants.proves(record.sender_id)):
            if not isinstance(record, Waiting):
                state.repeats.add((record.lamport, message_id, record.sender_id), now)
            return
        if isinstance(record, Waiting):
            state.incoming.take(record.key)
            record.key, record.unproven = message_id, False
            state.incoming.hold(record)
        else:
            state.log.add(record, now)
        state.review.track(message_id, record.sender_id, record.lamport, doubt.since, now, events)
        state.insert_into_filter(message_id, now, events)
        state.incoming.discard(message_id)
        missing = self._remove_missing(message_id, False, now, events)
        if missing is not None:
            state.review.record_arrival(missing, now, events)
        self._order.settle([message_id], now, events)

    @staticmethod
    def _refuse(message: SdsMessage, reason: RefusalReason, detail: str, now: int, events: list[SdsEvent]) -> None:
        events.append(MessageRefused(now, message.message_id, message.sender_id, reason, detail))
