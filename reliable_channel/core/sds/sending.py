"""Wraps content in SDS messages with clock, history, filter and id, and makes sync messages (LIP-109, *Send Message*
and *Periodic Sync Message*)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reliable_channel.core.errors import EmptyMessage, LocalError
from reliable_channel.core.sds.conflicts import Relation, find_known, forget_loser, relation, report_conflict
from reliable_channel.core.sds.events import (
    DuplicateSeen,
    MessageRefused,
    Outgoing,
    OutgoingReason,
    RefusalReason,
    RepairRequested,
    SdsEvent,
)
from reliable_channel.core.sds.incoming import Waiting
from reliable_channel.core.sds.log import LogEntry, keep_history
from reliable_channel.core.sds.outgoing import OwnSegment, OwnSend
from reliable_channel.core.sds.receiving import DIGEST_BYTES, IncomingMessage, content_digest
from reliable_channel.core.sds.room import limit_to_room, room_for
from reliable_channel.core.sds.state import ChannelState
from reliable_channel.core.sds.unproven import Doubt
from reliable_channel.core.sds.verify import SEARCHED_BYTES
from reliable_channel.core.wire.hashing import sds_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily


class SdsSender:
    """Sends for the participant of a channel's state."""

    def __init__(self, state: ChannelState) -> None:
        self._state = state

    def send(
        self,
        contents: Sequence[bytes],
        required: int | None,
        now: int,
        outgoing: list[Outgoing],
        events: list[SdsEvent],
    ) -> None:
        """Wrap all segments of one send; see :meth:`SdsChannel.send`."""
        state = self._state
        me = self._participant()
        if not contents or not all(contents):
            raise EmptyMessage("A content of 0 bytes cannot be sent.", "On the wire it would be a sync message.")
        required = len(contents) if required is None else required
        if not 1 <= required <= len(contents):
            raise LocalError(f"required is {required} of {len(contents)} segments.", "Use 1 up to their number.")
        # Wrapped in one step: consecutive timestamps show a receiver which segments are of one send
        # (docs/segmentation.md, *Sets and sends*).
        first = max(state.clock_time(now), state.open(now) + 1)
        ids = [sds_message_id(me, first, content) for content in contents]
        if len(set(ids)) < len(ids):
            raise LocalError("Two contents of one send are equal.", "They would have one id: send them one by one.")
        leaves_now = self._leaves_now()
        due = self._list_due(now) if leaves_now else iter(())
        segments = []
        for index, content in enumerate(contents):
            message = self._wrap(ids[index], first + index, content, due, now, events)
            data = state.config.encode(message)
            outgoing.append(Outgoing(data, message, OutgoingReason.CONTENT, ids[0], index))
            known = find_known(state, ids[index])
            if known is not None:  # another sender has guessed content and time of this send
                report_conflict(message, known, True, now, events)
                forget_loser(state, ids[index])
            # Not a digest: a message under an own id is ignored from oneself, and a conflict from any other sender.
            segments.append(self._remember(message, data, index, first + index, content, now, events, digest=b""))
        state.outgoing.add(OwnSend(ids[0], required, segments), now)
        self._forget_old_sends()
        for message_id in ids:
            self._remove_missing(message_id, now, events)
        if leaves_now:
            self._spoke(now)

    def observe_sent(self, arrival: IncomingMessage) -> bool:
        """Process an own message seen on the wire; returns whether it is new here and owns its id."""
        state, message, digest, hint = self._state, arrival.message, arrival.digest, arrival.hint
        now, id_verified, events = arrival.now, arrival.id_verified, arrival.events
        lamport = message.lamport_timestamp
        if message.channel_id != state.channel_id or message.sender_id != self._participant() or lamport is None:
            return False
        is_sync = not message.content and digest is None
        if id_verified is False and is_sync:  # a stranger's in this participant's name
            return False
        # The search for the id of a long content may have ended before it was found.
        searched = (len(message.content) if message.content else arrival.content_bytes or 0) <= SEARCHED_BYTES
        if id_verified is False and searched:
            why = "not of this message"
            events.append(MessageRefused(now, message.message_id, message.sender_id, RefusalReason.INVALID_ID, why))
            return False
        clock = state.open(now, lamport)
        if not state.accepts(lamport, now):
            return False
        if lamport > clock:
            state.follow(lamport, now)
        if is_sync:
            state.incoming.syncs.add(message.message_id, message.sender_id)
            self._remove_missing(message.message_id, now, events)
            return True
        own_digest = content_digest(message.content) if message.content else digest or b""
        known = find_known(state, message.message_id)
        if known is None and id_verified is False and state.config.unproven_id_ms:
            history = keep_history(message.causal_history)
            unproven = LogEntry(message.message_id, lamport, message.sender_id, history, own_digest, hint)
            state.unproven.add(message.message_id, Doubt(unproven, now, now + state.config.unproven_id_ms))
            return False
        if known is not None and not self._takes_id(arrival, known, own_digest):
            return False
        data = state.config.encode(message)
        segment = self._remember(message, data, 0, lamport, message.content or b"", now, events, digest)
        entry = state.log.get(message.message_id)
        if entry is not None and hint is not None:
            entry.set_hint(hint)
        state.outgoing.add(OwnSend(message.message_id, 1, [segment]), now)
        if state.config.wait_for_sent:
            state.outgoing.record_sent(segment, now)
        self._forget_old_sends()
        self._remove_missing(message.message_id, now, events)
        return True

    def _takes_id(self, arrival: IncomingMessage, known: LogEntry | Waiting, digest: bytes) -> bool:
        """Compare an own message with what is ``known`` under its id; returns whether the id is its own from now on."""
        state, message, now, events = self._state, arrival.message, arrival.now, arrival.events
        relation_to_known = relation(state, message, digest, known, arrival.id_verified, now, events)
        if relation_to_known is Relation.LOSER:
            return False
        if relation_to_known is Relation.WINNER:
            forget_loser(state, message.message_id)
            return True
        if relation_to_known is Relation.FURTHER_SEND and known.sender_id != message.sender_id:
            state.review.untrack(message.message_id)
            state.unproven.take(message.message_id)
            if isinstance(known, Waiting):
                known.unproven = False
            else:
                state.repeats.add((known.lamport, message.message_id, known.sender_id), now)
                state.log.remove(message.message_id)
            return True
        if arrival.hint is not None:
            known.set_hint(arrival.hint)
        segment = state.outgoing.segments.get(message.message_id)
        if segment is not None:
            state.outgoing.record_sent(segment, now)
        events.append(DuplicateSeen(now, message.message_id, message.sender_id))
        return False

    def ephemeral(self, content: bytes, now: int) -> Outgoing:
        """Wrap an ephemeral message, which has no timestamp, history or filter and is not remembered."""
        state = self._state
        me = self._participant()
        if not content:
            raise EmptyMessage("A content of 0 bytes cannot be sent.")
        state.open(now)
        state.ephemeral_counter += 1
        # Without the counter, two equal contents of one millisecond would have one id.
        message_id = sds_message_id(f"{me}/ephemeral/{state.ephemeral_counter}/", now, content)
        message = SdsMessage(me, message_id, state.channel_id, content=content)
        return Outgoing(state.config.encode(message), message, OutgoingReason.EPHEMERAL)

    def sync(self, now: int, outgoing: list[Outgoing], events: list[SdsEvent]) -> None:
        """Send a sync message, unless there is nothing to report."""
        state = self._state
        me = self._participant()
        lamport = max(state.clock_time(now), (state.clock or 0) + 1)
        requests_due = state.repair is not None and state.repair.request_is_due(now)
        named: tuple[HistoryEntry, ...] = ()
        if len(state.log) or requests_due:
            message_id = sds_message_id(me, lamport, b"")
            message = self._wrap(message_id, lamport, None, self._list_due(now), now, events)
            data = state.config.encode(message)
            outgoing.append(Outgoing(data, message, OutgoingReason.SYNC))
            named = message.causal_history
            if state.sync is not None and state.config.wait_for_sent:
                state.sync.unsent = message_id
            if state.config.wire_family is WireFamily.NIM:  # its peers name it
                state.incoming.syncs.add(message_id, me)
                if state.repair is not None:  # … and ask for it
                    state.repair.keep(message_id, data, own=True)
        if state.sync is not None:
            # Not all that are owed: long ids of strangers may have left no room for others.
            state.sync.settle([entry.message_id for entry in named], state.log.holds, now)
        self._spoke(now)

    def _list_due(self, now: int) -> Iterator[str]:
        """The ids whose repair requests are due. Once for all segments of a send: a stranger may have named many."""
        state = self._state
        return iter(() if state.repair is None else state.repair.list_due(now, state.incoming.find_namer))

    def _wrap(
        self,
        message_id: str,
        lamport: int,
        content: bytes | None,
        due: Iterator[str],
        now: int,
        events: list[SdsEvent],
    ) -> SdsMessage:
        """Build a message with clock, history, filter and the next of the ``due`` repair requests."""
        state = self._state
        state.clock = lamport  # the filter stays as it was before the message (docs/spec/sds.md, *Send*)
        requests: list[HistoryEntry] = []
        if state.repair is not None and (not content or self._leaves_now()):
            requests = state.repair.make_requests(due, now)
        requests = limit_to_room(requests, room_for(state.config.max_repair_requests_per_message, self._participant()))
        events.extend([RepairRequested(now, entry.message_id, message_id) for entry in requests])
        # Content names no more than the usual history: its segment fills the envelope.
        history = state.history(None if content else self._list_owed())
        if content and state.sync is not None:
            state.sync.remove_named(history, self._participant())
        return SdsMessage(
            sender_id=self._participant(),
            message_id=message_id,
            channel_id=state.channel_id,
            lamport_timestamp=lamport,
            causal_history=history,
            bloom_filter=state.filter.encode() if state.filter is not None else None,
            repair_request=tuple(requests),
            content=content,
        )

    def _leaves_now(self) -> bool:
        """Whether content that is wrapped now leaves at once. Behind other content that waits for a rate limit it says
        too late what is missing, and when it leaves the next sync message may be overdue."""
        return self._state.outgoing.has_left(self._state.last_own)

    def owes(self) -> bool:
        """Whether content exists that a sync message would acknowledge by naming it."""
        return bool(self._list_owed())

    def _list_owed(self) -> list[str]:
        """The content that a sync message names beside the usual history."""
        sync = self._state.sync
        return [] if sync is None else sync.list_owed(self._state.log.holds)

    def _remember(
        self,
        message: SdsMessage,
        data: bytes,
        index: int,
        lamport: int,
        content: bytes,
        now: int,
        events: list[SdsEvent],
        digest: bytes | None = None,
    ) -> OwnSegment:
        """Add a message to the log, the filter, the tracked acknowledgements and the kept bytes; returns the segment
        for the outgoing buffer."""
        state = self._state
        message_id = message.message_id
        history = keep_history(message.causal_history)
        digest = content_digest(content) if digest is None else digest[:DIGEST_BYTES]
        state.log.add(LogEntry(message_id, lamport, message.sender_id, history, digest, None), now)
        state.last_own = message_id
        state.insert_into_filter(message_id, now, events)
        state.review.track(message_id, message.sender_id, lamport, now, now, events)
        if state.repair is not None:
            state.repair.keep(message_id, data, own=True)
        return OwnSegment(message_id, index, data, state.config.acknowledgement_timeout_ms)

    def _remove_missing(self, message_id: str, now: int, events: list[SdsEvent]) -> None:
        missing = self._state.incoming.remove_missing(message_id)
        if missing is not None:
            self._state.review.record_arrival(missing, now, events)

    def _forget_old_sends(self) -> None:
        outgoing = self._state.outgoing
        while len(outgoing.finished) > self._state.config.max_finished_sends:
            send = outgoing.sends[next(iter(outgoing.finished))]
            outgoing.drop(send)
            for segment in send.segments:
                self._state.review.untrack(segment.message_id)

    def _spoke(self, now: int) -> None:
        if self._state.sync is not None:
            self._state.sync.spoke(now)

    def _participant(self) -> str:
        if self._state.participant_id is None:
            raise LocalError("An observer sends nothing.", "Give the channel a participant id.")
        return self._state.participant_id
