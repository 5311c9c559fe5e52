"""Finds the acknowledgements that a received message carries (docs/sds.md, *Acknowledgements*).

An id in the causal history is *certainly* acknowledged. A message in the causal past of such an id has an *implied*
acknowledgement once a filter of the same participant contains it too. A filter alone makes an acknowledgement
*probable*."""

from __future__ import annotations

from collections.abc import Collection

from reliable_channel.core.sds.acks import BY_FILTER, IMPLIED, NAMED, AckTable, Participants, Tracked
from reliable_channel.core.sds.config import SdsParameters, Tracking
from reliable_channel.core.sds.events import (
    Acknowledged,
    Evidence,
    MessageRefused,
    PossiblyAcknowledged,
    RefusalReason,
    SaturatedFilter,
    SdsEvent,
    TrackingEnded,
)
from reliable_channel.core.sds.incoming import IncomingBuffer, Missing
from reliable_channel.core.sds.log import MessageLog
from reliable_channel.core.sds.outgoing import OutgoingBuffer, OwnSegment
from reliable_channel.core.shares import OVERHEAD, Shares
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsMessage

MAX_WALK = 10_000
"""Maximum number of references followed per input, about 5 ms. Older messages stay unmarked, so fewer acknowledgements
are implied."""


class AckReview:
    """Reviews received messages against the tracked ones. Only another participant's message can acknowledge."""

    def __init__(
        self,
        config: SdsParameters,
        participant_id: str | None,
        log: MessageLog,
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
        self._others = Shares[str](config.max_tracked, config.max_tracked * OVERHEAD)
        """Tracked messages of others, by their senders."""

    def track(
        self, message_id: str, sender_id: str, lamport: int, since: int, now: int, events: list[SdsEvent]
    ) -> None:
        """Track the acknowledgements of a message that is new since ``since`` (ms), if the configuration selects it."""
        if sender_id != self._me and not self._everyone:
            return
        self.untrack(message_id)  # the log may have forgotten it
        if sender_id != self._me:
            self._others.add(message_id, sender_id, OVERHEAD)
        self.table.add(Tracked(message_id, sender_id, lamport, since))
        while self._others.surplus > 0 and (oldest := self._others.take_surplus()) is not None:
            self.table.discard(oldest)
            events.append(TrackingEnded(now, oldest))

    def restore(self, tracked: list[Tracked]) -> None:
        """Restore the tracked messages of a snapshot, with their acknowledgements."""
        for each in tracked:
            if each.sender_id != self._me:
                self._others.add(each.message_id, each.sender_id, OVERHEAD)
        self.table.restore(tracked)

    def untrack(self, message_id: str) -> None:
        """Stop tracking a message, because it lost a conflict or others need the room."""
        tracked = self.table.get(message_id)
        if tracked is not None:
            self.table.discard(message_id)
            if tracked.sender_id != self._me:
                self._others.remove(message_id, tracked.sender_id)

    def review(self, message: SdsMessage, now: int, events: list[SdsEvent]) -> None:
        """Process all acknowledgements of a received message."""
        number = self.participants.number(message.sender_id)
        if number is None:
            number = self._replace_quietest(message.sender_id)
        if number is None:
            return
        self.participants.record_message(number, message.lamport_timestamp)
        if message.causal_history and self.table.tracked:
            self._review_history(message, number, now, events)
        if message.bloom_filter:
            self._review_filter(message, number, now, events)

    def _replace_quietest(self, participant_id: str) -> int | None:
        """Reassign the number of the quietest participant, which is forgotten, to a newcomer, and return it."""
        number = self.participants.quietest(but=self._me)
        if number is None:
            return None
        # The marks of the causal past (``LogEntry.past``) stay: they are on messages sent before the newcomer was
        # heard, for which nothing is implied.
        gone = self.participants.name(number)
        self.table.forget(number, gone, self._find_tracked_of(gone), self._find_tracked_of(participant_id))
        self.participants.replace(number, participant_id)
        return number

    def _find_tracked_of(self, sender_id: str) -> Collection[str]:
        """The ids of the tracked messages of a sender."""
        if sender_id != self._me:
            return self._others.keys_of(sender_id)
        return [each.message_id for each in self.table if each.sender_id == sender_id]

    def record_arrival(self, missing: Missing, now: int, events: list[SdsEvent]) -> None:
        """Process the arrival of a message that other participants had named, or had in their causal past. Those that
        named it have acknowledged it; for the others the filters of their next messages decide."""
        tracked = self.table.get(missing.message_id)
        for by, (via, directly) in missing.reached.items():
            number = self.participants.number(by)
            if number is None:
                continue
            if tracked is not None and tracked.sender_id != by:
                if directly:
                    self._acknowledge(tracked, by, number, NAMED, via, now, events)
                else:
                    self._reach(tracked, number)
            self._walk(by, number, [missing.message_id], via)

    def _review_history(self, message: SdsMessage, number: int, now: int, events: list[SdsEvent]) -> None:
        """Acknowledge what a message names, and mark what lies in the causal past of that."""
        by, bit = message.sender_id, 1 << number
        tracked_as = self.table.get
        named = [entry.message_id for entry in message.causal_history]
        for message_id in named:
            tracked = tracked_as(message_id)
            # Senders name their own last message in every history.
            if tracked is not None and not tracked.certain & bit and tracked.sender_id != by:
                self._acknowledge(tracked, by, number, NAMED, message.message_id, now, events)
        self._walk(by, number, named, message.message_id)

    def _walk(self, by: str, number: int, start: list[str], via: str) -> None:
        """Mark the causal past of the ids that ``by`` names, each message once per participant, back to the oldest
        tracked one."""
        floor = self.table.floor()
        if floor is None:
            return
        bit = 1 << number
        find, decoded = self._log.find, self._log.get
        waiting, missing = self._incoming.waiting, self._incoming.missing
        tracked_as = self.table.get
        stack = [entry for each in start if (entry := decoded(each) or waiting.get(each)) is not None]
        left = MAX_WALK
        while stack and left > 0:
            entry = stack.pop()
            # Each message once for each participant: scanning the whole history per message is a known mistake
            # (docs/spec/sds.md, *Known mistakes of implementations*).
            if entry.past & bit or entry.lamport < floor:
                continue
            entry.reach(bit)
            history = entry.history
            left -= 1 + len(history)
            for dependency in history:
                tracked = tracked_as(dependency)
                if tracked is not None:
                    if not tracked.reached & bit and tracked.sender_id != by:
                        self._reach(tracked, number)
                elif dependency in missing:
                    self._incoming.reach(missing[dependency], by, via, directly=False)
                looked_up = find(dependency)
                earlier = decoded(dependency) if isinstance(looked_up, tuple) else looked_up or waiting.get(dependency)
                if earlier is not None and not earlier.past & bit:
                    stack.append(earlier)

    def _reach(self, tracked: Tracked, number: int) -> None:
        """Record that a participant has a message in its causal past."""
        # Nothing is implied for messages sent before the participant was first heard: it may have joined later.
        since = self.participants.first_lamport(number)
        if since is None or tracked.lamport <= since:
            return
        bit = 1 << number
        tracked.reached |= bit
        self.table.mark(tracked, number)
        if tracked.acked & ~tracked.certain & ~tracked.implied & bit:  # by filters alone
            self.table.ask(tracked, number)

    def _review_filter(self, message: SdsMessage, number: int, now: int, events: list[SdsEvent]) -> None:
        """Acknowledge what a message's filter contains: as implied if it lies in the causal past, else as a hit."""
        filter_format = self._config.filter_format.of(message.bloom_filter or b"")
        words = filter_format.decode(message.bloom_filter or b"")
        if isinstance(words, Malformed):
            events.append(
                MessageRefused(now, message.message_id, message.sender_id, RefusalReason.FILTER_SIZE, words.detail)
            )
            return
        saturation = filter_format.saturation(words)
        if saturation > self._config.saturation_limit:  # a filter of ones would acknowledge everything
            events.append(SaturatedFilter(now, message.message_id, message.sender_id, saturation))
            return
        by, via = message.sender_id, message.message_id
        for tracked in self.table.find_in_filter(words, number, filter_format):
            if tracked.reached >> number & 1:
                self._acknowledge(tracked, by, number, IMPLIED, via, now, events)
            else:
                self._hit(tracked, by, number, via, now, events)

    def _hit(self, tracked: Tracked, by: str, number: int, via: str, now: int, events: list[SdsEvent]) -> None:
        """Record that a filter contains an id. One of a segment that has not left yet is an error of the filter: of
        many that wait for a rate limit, some would count as acknowledged and never be sent."""
        segment = self._outgoing.segments.get(tracked.message_id)
        if segment is not None and not segment.has_left:
            return
        vias = tracked.record_hit(by, via)
        if vias is None:  # another copy of a message that was counted
            return
        self.table.mark(tracked, number)
        threshold = self._config.possible_acks_threshold
        if len(vias) >= threshold:
            self._acknowledge(tracked, by, number, BY_FILTER, via, now, events)
            return
        count = tracked.hit_count()
        events.append(PossiblyAcknowledged(now, tracked.message_id, by, via, count))
        if segment is None:
            return
        if count >= threshold:
            self._outgoing.acknowledge(segment, BY_FILTER, now, events)
        else:
            self._outgoing.possibly(segment, now)

    def _acknowledge(
        self, tracked: Tracked, by: str, number: int, evidence: Evidence, via: str, now: int, events: list[SdsEvent]
    ) -> None:
        """Record an acknowledgement that is new or stronger than before; of an own segment, also for its send."""
        had = tracked.evidence_of(number) if tracked.acked >> number & 1 else None
        if had is not None and not evidence.is_stronger_than(had):
            return
        tracked.acknowledge(number, evidence)
        self.table.mark(tracked, number)
        if tracked.hits:
            tracked.hits.pop(by, None)
        if self.table.has_filters:
            self.table.ask(tracked, number)
        events.append(Acknowledged(now, tracked.message_id, tracked.sender_id, by, evidence, via, tracked.since))
        segment = self._outgoing.segments.get(tracked.message_id)
        if segment is None:
            return
        send = segment.send
        self._outgoing.acknowledge(segment, evidence, now, events)
        if had is None:
            count = send.by_count[by] = send.by_count.get(by, 0) + 1
            if count >= send.required:
                self._outgoing.complete(send, by, self._find_weakest(send.segments, number), now, events)

    def _find_weakest(self, segments: list[OwnSegment], number: int) -> Evidence:
        """The weakest evidence among a participant's acknowledgements of some segments, of which at least one
        exists."""
        of_segments = [tracked for segment in segments if (tracked := self.table.get(segment.message_id))]
        kinds = {evidence for tracked in of_segments if (evidence := tracked.evidence_of(number))}
        return next(evidence for evidence in reversed(Evidence) if evidence in kinds)
