"""Simulates one channel in virtual time: participants send, links carry envelopes, timers fire, the observer records.

A discrete-event loop. Everything in it follows from the plan and the seed: events at the same time go in the order in
which they were scheduled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from reliable_channel.core.sds import Delivered, DeliveryError, Outgoing, OutgoingReason, SdsStep, SendDelivered
from reliable_channel.core.wire.malformed import Reason
from reliable_channel.simulation.attacks import Attackers
from reliable_channel.simulation.bad_input import record_of
from reliable_channel.simulation.faults import Treatment, treatment
from reliable_channel.simulation.journal import (
    ChannelJournal,
    EnvelopeDispatch,
    SentMessage,
    SentSds,
    Stored,
)
from reliable_channel.simulation.network import OBSERVER, DispatchTimes, Link, are_separated
from reliable_channel.simulation.participant import Envelope, SentSegments, SimulatedParticipant
from reliable_channel.simulation.scenario import ChannelPlan, Scenario
from reliable_channel.simulation.scene import Forgery
from reliable_channel.simulation.workload import PlannedMessage, plan_messages

REFETCH_AFTER_MS = (15_000, 60_000, 150_000)
"""When an operated pipeline queries the stores for a named message: before it is declared lost."""


def play_channel(plan: ChannelPlan, scenario: Scenario) -> ChannelJournal:
    """Simulate the channel to the end of the scenario and return its journal."""
    play = _Play(plan, scenario)
    play.run()
    return play.journal


class _Play:
    def __init__(self, plan: ChannelPlan, scenario: Scenario) -> None:
        self.plan = plan
        self.start = scenario.start_ms
        self.end = scenario.end_ms
        self.journal = ChannelJournal(plan, stored={store.name: {} for store in scenario.stores})
        self.stores = {
            store.name: (store, Link(store.link, scenario.seed, ("store", store.name, plan.channel_id)))
            for store in scenario.stores
        }
        self._requested: set[str] = set()
        self._arrived: set[str] = set()
        self.participants = {name: SimulatedParticipant(name, plan) for name in plan.participants}
        joins = dict(plan.joins_at)
        self.journal.joined = {name: self.start + joins.get(name, 0) for name in plan.participants}
        self.faults = dict(plan.faults)
        self.treatments: dict[str, Treatment] = {}
        given = {(a, b): quality for a, b, quality in plan.links}
        self.links = {
            (a, b): Link(
                plan.to_observer if b == OBSERVER else given.get((a, b), plan.between),
                scenario.seed,
                (plan.channel_id, a, b),
            )
            for a in plan.participants
            for b in (*plan.participants, OBSERVER)
            if a != b
        }
        self.pace = DispatchTimes(plan, scenario.start_ms)
        self.attackers = Attackers(plan, scenario.seed)
        self._forged: dict[bytes, Forgery] = {}
        """Hostile SDS messages by their bytes: a participant may send one again as a repair."""
        self._queue: list[tuple[int, int, Callable[[int], None]]] = []
        self._scheduled = 0
        self._next_tick: dict[str, int] = {}
        for name, when in self.journal.joined.items():
            self._call_at(when, partial(self._wake, self.participants[name]))
        for message in plan_messages(plan, scenario.seed):
            self._call_at(self.start + message.at_ms, partial(self._speak, message))

    def run(self) -> None:
        while self._queue and self._queue[0][0] <= self.end:
            now, _, action = heapq.heappop(self._queue)
            action(now)

    def _call_at(self, when: int, action: Callable[[int], None]) -> None:
        self._scheduled += 1
        heapq.heappush(self._queue, (when, self._scheduled, action))

    # ---- what participants do ------------------------------------------------------------------------------------

    def _speak(self, message: PlannedMessage, now: int) -> None:
        participant = self.participants[message.sender]
        if (awake := self.pace.awake_at(participant.name, now)) > now:
            self._call_at(awake, partial(self._speak, message))
            return
        fault = self.faults.get(message.number)
        sent = participant.send_message(message, now, fault)
        self._note_message(message, sent, now)
        self._follow(participant, sent.step, now, message.number)

    def _note_message(self, message: PlannedMessage, sent: SentSegments, now: int) -> None:
        ids = tuple(o.message.message_id for o in sent.step.outgoing if o.reason in _FIRST)
        self.journal.messages[message.number] = SentMessage(
            number=message.number,
            sender=message.sender,
            sent_at_ms=now,
            payload=message.payload,
            ephemeral=message.ephemeral,
            data_count=sent.data_count,
            parity_count=sent.parity_count,
            sds_ids=ids,
            fault=self.faults.get(message.number),
        )
        for ordinal, sds_id in enumerate(ids):
            self.treatments[sds_id] = treatment(
                self.faults.get(message.number), ordinal, sent.data_count, sent.parity_count
            )

    def _follow(self, participant: SimulatedParticipant, step: SdsStep, now: int, message: int | None = None) -> None:
        """Dispatch a step's outgoing messages, record its events, and schedule the participant's next timer."""
        ordinal = 0
        for outgoing in step.outgoing:
            own = outgoing.reason in _FIRST
            self._note_sds(outgoing, participant.name, now, message if own else None, ordinal if own else None)
            ordinal += own
            self._dispatch(outgoing, participant, now)
        for event in step.events:
            if isinstance(event, SendDelivered):
                self.journal.confirmed[self._find_message(event.send_id)] = now
            elif isinstance(event, DeliveryError):
                self.journal.failed[self._find_message(event.send_id)] = now
            elif isinstance(event, Delivered):
                self.journal.delivered[(participant.name, event.message_id)] = now
                self.journal.heard.setdefault((participant.name, event.message_id), now)  # a repaired one came by none
        self._schedule_tick(participant)

    def _find_message(self, send_id: str) -> int:
        number = self.journal.sds[send_id].message
        if number is None:
            raise AssertionError(f"send {send_id} is no application message")
        return number

    def _note_sds(self, outgoing: Outgoing, sender: str, now: int, message: int | None, ordinal: int | None) -> None:
        made = outgoing.message
        if made.message_id in self.journal.sds or outgoing.data in self._forged:
            return
        self.journal.sds[made.message_id] = SentSds(
            sds_id=made.message_id,
            sender=made.sender_id,
            lamport=made.lamport_timestamp,
            history=tuple(entry.message_id for entry in made.causal_history),
            made_at_ms=now,
            message=message,
            ordinal=ordinal,
        )
        self.journal.heard[(sender, made.message_id)] = now

    def _schedule_tick(self, participant: SimulatedParticipant) -> None:
        due = participant.sds.next_due()
        if due is None or self._next_tick.get(participant.name) == due:
            return
        self._next_tick[participant.name] = due
        self._call_at(due, partial(self._tick, participant, due))

    def _tick(self, participant: SimulatedParticipant, due: int, now: int) -> None:
        if self._next_tick.get(participant.name) != due:
            return  # another timer took its place
        if (awake := self.pace.awake_at(participant.name, now)) > now:
            self._call_at(awake, partial(self._tick, participant, due))
            return
        del self._next_tick[participant.name]
        self._wake(participant, now)

    def _wake(self, participant: SimulatedParticipant, now: int) -> None:
        self._follow(participant, participant.sds.tick(now), now)

    # ---- what the network does -----------------------------------------------------------------------------------

    def _dispatch(self, outgoing: Outgoing, participant: SimulatedParticipant, now: int) -> None:
        """Send an envelope as soon as its participant may."""
        if outgoing.reason is OutgoingReason.SYNC and not self.pace.has_room(participant.name, now):
            return
        at = self.pace.take(participant.name, now)
        if at > now:
            self._call_at(at, partial(self._send, outgoing, participant))
        else:
            self._send(outgoing, participant, now)

    def _send(self, outgoing: Outgoing, participant: SimulatedParticipant, now: int) -> None:
        fate = self.treatments.get(outgoing.message.message_id, Treatment())
        envelope = participant.wrap(outgoing, now, dispatched=fate.dispatched, under_unknown_key=fate.under_unknown_key)
        forgery = self._forged.get(outgoing.data)
        if forgery is not None:  # somebody asked for a hostile message, and this participant has it
            self._attack(replace(forgery, delay_ms=self.plan.to_observer.delay_ms), participant.name, now)
            return
        record = EnvelopeDispatch(envelope.sds_id, participant.name, now, envelope.hash)
        if not fate.dispatched:
            self.journal.withheld.append(record)
            return
        self.journal.dispatches.append(record)
        self._store(outgoing, envelope, fate, now)
        for name in (*self.plan.participants, OBSERVER):
            if name == participant.name:
                continue
            # Also while they are separated: what a link draws depends on the number of the envelope, not on partitions.
            delays = self.links[participant.name, name].carry()
            if are_separated(self.plan.partitions, now - self.start, participant.name, name):
                continue
            if name == OBSERVER:
                delays = fate.delays_to_observer(delays, self.plan.to_observer.delay_ms)
                arrive = partial(self._observe, envelope, fate)
            else:
                arrive = partial(self._receive, self.participants[name], envelope)
            for delay in delays:
                self._call_at(now + delay, arrive)
        for forgery in self.attackers.overhear(outgoing.message, now):
            self._forged[forgery.data] = forgery
            self._attack(forgery, "", now)

    def _store(self, outgoing: Outgoing, envelope: Envelope, fate: Treatment, now: int) -> None:
        """Store the envelope at every node that receives it and may keep it."""
        for store, link in self.stores.values():
            arrives = bool(link.carry())  # also while it is off, as in :meth:`_send`
            off = store.off_ms is not None and 0 <= now - self.start - store.off_ms < store.off_for_ms
            if arrives and not off and fate.stored and outgoing.message.lamport_timestamp is not None:
                self.journal.stored[store.name][envelope.hash] = Stored(envelope.sds_id, envelope.data)

    def _attack(self, forgery: Forgery, by: str, now: int) -> None:
        """Deliver a hostile message to the observer and, if the plan says so, to everybody but ``by``. The network
        never loses it, because an attacker can repeat it until it arrives."""
        value, arrival = self.attackers.envelope(forgery, now), now + forgery.delay_ms
        self._call_at(arrival, partial(self._observe_attack, forgery, value))
        if self.plan.hostile is None or not self.plan.hostile.heard_by_participants:
            return
        for name, participant in self.participants.items():
            if name != by:
                self._call_at(arrival, partial(self._receive_attack, participant, forgery, value))

    def _receive_attack(self, participant: SimulatedParticipant, forgery: Forgery, value: bytes, now: int) -> None:
        if now < self.journal.joined[participant.name] or self.pace.awake_at(participant.name, now) > now:
            return
        self.journal.heard.setdefault((participant.name, forgery.message.message_id), now)
        self._follow(participant, participant.receive_bytes(value, now), now)

    def _observe_attack(self, forgery: Forgery, value: bytes, now: int) -> None:
        self.journal.observed.append(record_of(self.plan, now, value, label=forgery.attack, forgery=forgery))

    def _receive(self, participant: SimulatedParticipant, envelope: Envelope, now: int) -> None:
        if now < self.journal.joined[participant.name] or self.pace.awake_at(participant.name, now) > now:
            return
        self.journal.heard.setdefault((participant.name, envelope.sds_id), now)
        self._follow(participant, participant.receive(envelope, now), now)

    def _observe(self, envelope: Envelope, fate: Treatment, now: int) -> None:
        reason, label = None, ""
        if fate.cut_at_observer:
            reason, label = Reason.MALFORMED_ENVELOPE.value, "cut envelope"
        elif fate.under_unknown_key:
            reason, label = Reason.UNDECRYPTABLE.value, "encrypted with a key that is not known here"
        value = envelope.data[: len(envelope.data) // 2] if fate.cut_at_observer else envelope.data
        self._write_down(envelope.sds_id, value, now, "relay", reason, label)

    def _write_down(
        self, sds_id: str, value: bytes, now: int, source: str, reason: str | None = None, label: str = ""
    ) -> None:
        self.journal.observed.append(record_of(self.plan, now, value, source, label, sds_id=sds_id, reason=reason))
        if reason is None and self.stores:
            self._arrived.add(sds_id)
            for named in self.journal.sds[sds_id].history:
                if named not in self._arrived and named not in self._requested:
                    self._requested.add(named)
                    for wait_ms in REFETCH_AFTER_MS:
                        self._call_at(now + wait_ms, partial(self._refetch, named))

    def _refetch(self, sds_id: str, now: int) -> None:
        """Query the stores for a message that was named and has not arrived; the first that has it returns it."""
        if sds_id in self._arrived:
            return
        kept = (one for held in self.journal.stored.values() for one in held.values() if one.sds_id == sds_id)
        if (envelope := next(kept, None)) is not None:
            self._write_down(sds_id, envelope.data, now, "store")


_FIRST = (OutgoingReason.CONTENT, OutgoingReason.EPHEMERAL)
