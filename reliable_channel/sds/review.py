"""What a received message says about others' deliveries (protocol.md §5, *Acks*): its causal history, the causal past
of what it names, and its filter."""

from __future__ import annotations

from collections import deque

from reliable_channel.sds.acks import AckTable, Participants, Tracked
from reliable_channel.sds.config import SdsConfig, Tracking
from reliable_channel.sds.events import (
    Acknowledged,
    Event,
    Evidence,
    PossiblyAcknowledged,
    RefusalReason,
    Refused,
    SaturatedFilter,
    TrackingEnded,
)
from reliable_channel.sds.incoming import IncomingBuffer, Missing
from reliable_channel.sds.log import Log
from reliable_channel.sds.outgoing import OutgoingBuffer, Segment
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.sds import SdsMessage


class AckReview:
    """Reviews received messages against the tracked ones. Only another participant's message can acknowledge."""

    def __init__(
        self,
        config: SdsConfig,
        participant_id: str | None,
        log: Log,
        incoming: IncomingBuffer,
        outgoing: OutgoingBuffer,
    ) -> None:
        self._config = config
        self._me = participant_id
        self._log = log
        self._incoming = incoming
        self._outgoing = outgoing
        tracking = config.tracking or (Tracking.EVERYONE if participant_id is None else Tracking.OWN)
        self._everyone = tracking is Tracking.EVERYONE
        self.participants = Participants(config.max_participants)
        self.table = AckTable(config, self.participants)
        self.others: deque[str] = deque()
        """Tracked messages of others, oldest first."""

    def track(self, tracked: Tracked, events: list[Event], now: int) -> None:
        """Follow the acknowledgements of a message that is new here, if they are to be followed."""
        if tracked.sender_id != self._me:
            if not self._everyone:
                return
            self.others.append(tracked.message_id)
            if len(self.others) > self._config.max_tracked:
                oldest = self.others.popleft()
                self.table.discard(oldest)
                events.append(TrackingEnded(now, oldest))
        self.table.add(tracked)

    def restore(self, tracked: list[Tracked]) -> None:
        """Follow the messages of a snapshot, with the acknowledgements they had."""
        self.others.extend(each.message_id for each in tracked if each.sender_id != self._me)
        self.table.restore(tracked)

    def untrack(self, message_id: str) -> None:
        """Stop following a message (it lost a conflict)."""
        if self.table.get(message_id) is not None:
            self.table.discard(message_id)
            if message_id in self.others:
                self.others.remove(message_id)

    def review(self, message: SdsMessage, now: int, events: list[Event]) -> None:
        """Everything a received message acknowledges."""
        by = message.sender_id
        number = self.participants.number(by)
        if number is None:
            return
        if len(self.table):
            self._review_history(message, number, now, events)
        if message.bloom_filter:
            self._review_filter(message, number, now, events)

    def arrived(self, missing: Missing, now: int, events: list[Event]) -> None:
        """A message that others had named or passed on before it came here: they have acknowledged it, and its past."""
        tracked = self.table.get(missing.message_id)
        for by, (via, directly) in missing.reached.items():
            number = self.participants.number(by)
            if number is None:
                continue
            if tracked is not None and tracked.sender_id != by:
                evidence = Evidence.CAUSAL_HISTORY if directly else Evidence.CAUSAL_PAST
                self._acknowledge(tracked, by, number, evidence, via, now, events)
            self._walk(by, number, [missing.message_id], via, now, events)

    def _review_history(self, message: SdsMessage, number: int, now: int, events: list[Event]) -> None:
        by = message.sender_id
        table = self.table
        named = []
        for entry in message.causal_history:
            message_id = entry.message_id
            named.append(message_id)
            tracked = table.get(message_id)
            if tracked is not None and tracked.sender_id != by:
                self._acknowledge(tracked, by, number, Evidence.CAUSAL_HISTORY, message.message_id, now, events)
        if named:
            self._walk(by, number, named, message.message_id, now, events)

    def _walk(self, by: str, number: int, start: list[str], via: str, now: int, events: list[Event]) -> None:
        """The causal past of what ``by`` names, each message once per participant, no further back than is tracked."""
        floor = self.table.floor()
        if floor is None:
            return
        bit = 1 << number
        log, waiting, missing, table = self._log, self._incoming.waiting, self._incoming.missing, self.table
        implied: list[Tracked] = []
        stack = start
        while stack:
            message_id = stack.pop()
            entry = log.get(message_id) or waiting.get(message_id)
            if entry is None or entry.past & bit or entry.lamport < floor:
                continue
            entry.reach(bit)
            for dependency in entry.history:
                tracked = table.get(dependency)
                if tracked is not None:
                    if tracked.sender_id != by and not tracked.certain & bit:
                        implied.append(tracked)
                elif dependency in missing:
                    missing[dependency].reached.setdefault(by, (via, False))
                stack.append(dependency)
        implied.sort(key=lambda tracked: (tracked.lamport, tracked.message_id))
        for tracked in implied:
            self._acknowledge(tracked, by, number, Evidence.CAUSAL_PAST, via, now, events)

    def _review_filter(self, message: SdsMessage, number: int, now: int, events: list[Event]) -> None:
        filter_format = self._config.filter_format
        words = filter_format.decode(message.bloom_filter or b"")
        if isinstance(words, Malformed):
            events.append(Refused(now, message.message_id, message.sender_id, RefusalReason.FILTER_SIZE, words.detail))
            return
        saturation = filter_format.saturation(words)
        if saturation > self._config.saturation_limit:
            events.append(SaturatedFilter(now, message.message_id, message.sender_id, saturation))
            return
        for tracked in self.table.held_by(words, number):
            self._hit(tracked, message.sender_id, number, message.message_id, now, events)

    def _hit(self, tracked: Tracked, by: str, number: int, via: str, now: int, events: list[Event]) -> None:
        """A filter holds an id. Two copies of one message are one hit."""
        vias = tracked.hits.setdefault(by, [])
        if via in vias:
            return
        vias.append(via)
        threshold = self._config.possible_acks_threshold
        if len(vias) >= threshold:
            self._acknowledge(tracked, by, number, Evidence.FILTER, via, now, events)
            return
        count = tracked.hit_count()
        events.append(PossiblyAcknowledged(now, tracked.message_id, by, via, count))
        segment = self._outgoing.segments.get(tracked.message_id)
        if segment is None:
            return
        if count >= threshold:
            self._outgoing.acknowledge(segment, Evidence.FILTER, now, events)
        else:
            self._outgoing.possibly(segment, now)

    def _acknowledge(
        self, tracked: Tracked, by: str, number: int, evidence: Evidence, via: str, now: int, events: list[Event]
    ) -> None:
        had = tracked.ack_by(number)
        if had or (had is False and not evidence.certain):
            return
        tracked.acknowledge(number, certain=evidence.certain)
        tracked.hits.pop(by, None)
        if had is None:
            self.table.close(tracked, number)
        events.append(Acknowledged(now, tracked.message_id, tracked.sender_id, by, evidence, via, tracked.since))
        segment = self._outgoing.segments.get(tracked.message_id)
        if segment is None:
            return
        send = segment.send
        self._outgoing.acknowledge(segment, evidence, now, events)
        if had is None:
            count = send.by_count[by] = send.by_count.get(by, 0) + 1
            if count >= send.required:
                self._outgoing.complete(send, by, self._is_certain(send.segments, number), now, events)

    def _is_certain(self, segments: list[Segment], number: int) -> bool:
        acks = [tracked.ack_by(number) for segment in segments if (tracked := self.table.get(segment.message_id))]
        return not any(ack is False for ack in acks)
