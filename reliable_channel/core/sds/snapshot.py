"""Encodes and restores the snapshot of a channel (``proto/sds_state.proto``).

The log and the tracked messages are copied column by column, and the entries of the log stay encoded until they are
needed: an access to a channel costs its changes plus a copy of the bytes. Derived state (timers, bit positions, which
message waits for which id) is not stored. A text that occurs in many entries is stored once.
"""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.message import DecodeError

from reliable_channel.core.errors import LocalError
from reliable_channel.core.sds.acks import Tracked
from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.sds.incoming import IncomingBuffer, Missing, Waiting
from reliable_channel.core.sds.keys import Key, SendKey
from reliable_channel.core.sds.log import LogEntry, MessageLog, bits_to_bytes
from reliable_channel.core.sds.outgoing import OwnSegment, OwnSend, SegmentState
from reliable_channel.core.sds.repair import Repair
from reliable_channel.core.sds.review import AckReview
from reliable_channel.core.sds.state import ChannelState
from reliable_channel.core.sds.sync import SyncTimer
from reliable_channel.core.sds.unproven import Doubt
from reliable_channel.core.wire._pb import sds_state_pb2 as pb

VERSION = 5
_STATES = tuple(SegmentState)
_ABOVE_IDS = "\U0010ffff"
"""A text that no honest id exceeds: earlier states stored the timestamp of a horizon alone."""


class _Texts:
    """Texts by number."""

    def __init__(self, proto: pb.SdsState) -> None:
        self._all, self._numbers = proto.texts, {text: number for number, text in enumerate(proto.texts)}

    def number(self, text: str) -> int:
        """The number of a text; a new text gets the next one."""
        number = self._numbers.setdefault(text, len(self._numbers))
        if number == len(self._all):
            self._all.append(text)
        return number

    def of(self, number: int) -> str:
        """The text of a number."""
        return self._all[number]


def write_snapshot(state: ChannelState, *, with_kept: bool = True) -> bytes:
    """Encode the state of a channel."""
    proto = pb.SdsState(
        version=VERSION,
        channel_id=state.channel_id,
        participant_id=state.participant_id,
        clock=state.clock,
        observed_since=state.observed_since,
        far=state.far,
        sequence=state.sequence,
        ephemeral_counter=state.ephemeral_counter,
        last_own_id=state.last_own,
        participants=state.review.participants,
        finished_sends=state.outgoing.finished,
    )
    texts = _Texts(proto)
    state.log.write(proto)
    _write_incoming(proto, state.incoming, texts)
    for message_id, doubt in state.unproven.items():
        unproven = proto.unproven.add(
            message_id=message_id, since=doubt.since, until=doubt.until, refuted=doubt.refuted
        )
        if isinstance(doubt.record, Waiting):
            unproven.waits = True
        else:
            unproven.lamport, unproven.entry = doubt.record.lamport, doubt.record.to_bytes()
    for lamport, sds_id, sender in state.repeats.sends:
        proto.repeats.add(lamport=lamport, message_id=sds_id, sender_id=sender)
    if (horizon := state.repeats.horizons.common) is not None:
        proto.repeats_horizon, proto.repeats_horizon_id = horizon
    state.repeats.horizons.write(proto.repeats_horizons)
    _write_tracked(proto, state.review, texts)
    for send in state.outgoing.sends.values():
        _write_send(proto.sends.add(), send)
    if state.filter is not None:
        proto.filter_words = state.filter.words()
        proto.filter_count = state.filter.count
    if state.sync is not None:
        _write_sync(proto, state.sync)
    if state.repair is not None:
        _write_repair(proto, state.repair, with_kept)
    return proto.SerializeToString()


def read_snapshot(data: bytes, config: SdsParameters) -> ChannelState:
    """Restore the state from the result of :func:`write_snapshot`. Raises ``LocalError`` for anything else."""
    try:
        proto = pb.SdsState.FromString(data)
    except DecodeError as error:
        raise LocalError(f"These bytes are not an SDS snapshot: {error}.", "Restore another one.") from error
    if proto.version != VERSION:
        raise LocalError(
            f"The SDS snapshot is of version {proto.version}; this program reads version {VERSION}.",
            "Use the program that wrote it.",
        )
    try:
        return _read(proto, config)
    except (DecodeError, ValueError, KeyError, IndexError) as error:
        raise LocalError(f"The SDS snapshot contradicts itself: {error}.", "Restore another one.") from error


def _read(proto: pb.SdsState, config: SdsParameters) -> ChannelState:
    participant_id = proto.participant_id if proto.HasField("participant_id") else None
    state = ChannelState(proto.channel_id, participant_id, config)
    state.clock = proto.clock if proto.HasField("clock") else None
    state.observed_since = proto.observed_since
    state.far.extend(proto.far)
    state.sequence = proto.sequence
    state.ephemeral_counter = proto.ephemeral_counter
    state.last_own = proto.last_own_id
    state.log = MessageLog.read(proto, config.max_log_entries, config.max_log_bytes)
    texts = _Texts(proto)
    _read_incoming(proto, state, texts)
    state.review = AckReview(config, participant_id, state.log, state.incoming, state.outgoing)
    participants = list(proto.participants)
    for participant in participants:
        state.review.participants.number(participant)
    first_lamport = {each.by: each.lamport for each in proto.participants_heard}
    spoken = dict(enumerate(zip(proto.participant_messages, proto.participant_last, strict=True)))
    for number in range(len(participants)):
        state.review.participants.restore(number, first_lamport.get(number), spoken.get(number, (1, 0)))
    state.review.participants.proving = int.from_bytes(proto.participants_proving, "little")
    state.review.restore(_read_tracked(proto, participants, texts))
    state.repeats.sends.update({(each.lamport, each.message_id, each.sender_id): None for each in proto.repeats})
    if proto.HasField("repeats_horizon"):
        horizon_id = proto.repeats_horizon_id if proto.HasField("repeats_horizon_id") else _ABOVE_IDS
        state.repeats.horizons.common = (proto.repeats_horizon, horizon_id)
    state.repeats.horizons.read(proto.repeats_horizons)
    for send in proto.sends:
        _read_send(send, state)
    state.outgoing.finished = dict.fromkeys(proto.finished_sends)
    if state.filter is not None:
        state.filter.restore(proto.filter_words, proto.filter_count)
    _read_timers(proto, state)
    return state


def _read_timers(proto: pb.SdsState, state: ChannelState) -> None:
    if state.sync is not None:
        state.sync.counter = proto.sync_counter
        state.sync.unsent = proto.sync_unsent
        state.sync.unsent_owed = dict(zip(proto.sync_unsent_ids, proto.sync_unsent_senders, strict=True))
        state.sync.interval_due = proto.sync_due if proto.HasField("sync_due") else None
        state.sync.owed_due = proto.sync_owed_due if proto.HasField("sync_owed_due") else None
        state.sync.owed = dict(zip(proto.sync_owed_ids, proto.sync_owed_senders, strict=True))
        state.sync.owing_since = proto.sync_waiting_since if proto.HasField("sync_waiting_since") else None
    if state.repair is not None:
        for request in proto.repair_requests:
            sender_id = request.sender_id if request.HasField("sender_id") else None
            state.repair.restore_request(request.message_id, request.due, sender_id)
        requests = state.repair.requests
        state.repair.given_way = {
            key: missing.sender_id for key, missing in state.incoming.missing.items() if key not in requests
        }
        for response in proto.repair_responses:
            state.repair.restore_response(response.message_id, response.due)
        state.repair.answers_since = proto.repair_answers_since
        state.repair.answers.update({planned.by: planned.count for planned in proto.repair_answers})
        for kept in proto.kept:
            state.repair.keep(kept.message_id, kept.data, kept.size, own=kept.own)


# ---- parts -------------------------------------------------------------------------------------------------------


def _write_incoming(proto: pb.SdsState, incoming: IncomingBuffer, texts: _Texts) -> None:
    for remembered, ids, owners in (
        (incoming.lost, proto.lost, proto.lost_owners),
        (incoming.evicted, proto.evicted, proto.evicted_owners),
        (incoming.before_observation, proto.before_observation, proto.before_observation_owners),
    ):
        ids.extend(remembered.owners)
        owners.extend(map(texts.number, remembered.owners.values()))
    proto.syncs.extend(incoming.syncs.owners)
    proto.sync_senders.extend(incoming.syncs.owners.values())
    for waiting in incoming.waiting.values():
        _write_waiting(proto.waiting.add(), waiting)
    for missing in incoming.missing.values():
        _write_missing(proto.missing.add(), missing, texts)


def _read_incoming(proto: pb.SdsState, state: ChannelState, texts: _Texts) -> None:
    incoming = state.incoming
    for remembered, ids, owners in (
        (incoming.lost, proto.lost, proto.lost_owners),
        (incoming.evicted, proto.evicted, proto.evicted_owners),
        (incoming.before_observation, proto.before_observation, proto.before_observation_owners),
    ):
        for message_id, number in zip(ids, owners, strict=True):
            remembered.add(message_id, texts.of(number))
    for message_id, owner in zip(proto.syncs, proto.sync_senders, strict=True):
        incoming.syncs.add(message_id, owner)
    unproven_waiting: dict[str, Waiting] = {}
    for each_waiting in proto.waiting:
        waiting = _read_waiting(each_waiting)
        incoming.hold(waiting)
        if waiting.unproven:
            unproven_waiting[waiting.sds_id] = waiting
    for missing in proto.missing:
        incoming.restore_missing(_read_missing(missing, texts))
    for each in proto.unproven:
        record: LogEntry | Waiting
        if each.waits:
            record = unproven_waiting[each.message_id]
        else:
            record = LogEntry.from_bytes(each.message_id, each.lamport, each.entry)
        state.unproven.add(each.message_id, Doubt(record, each.since, each.until, each.refuted))


def _write_sync(proto: pb.SdsState, sync: SyncTimer) -> None:
    proto.sync_counter = sync.counter
    proto.sync_unsent = sync.unsent
    proto.sync_unsent_ids.extend(sync.unsent_owed)
    proto.sync_unsent_senders.extend(sync.unsent_owed.values())
    if sync.interval_due is not None:
        proto.sync_due = sync.interval_due
    if sync.owed_due is not None:
        proto.sync_owed_due = sync.owed_due
    proto.sync_owed_ids.extend(sync.owed)
    proto.sync_owed_senders.extend(sync.owed.values())
    if sync.owing_since is not None:
        proto.sync_waiting_since = sync.owing_since


def _write_repair(proto: pb.SdsState, repair: Repair, with_kept: bool) -> None:
    for message_id, (due, sender_id) in repair.requests.items():
        proto.repair_requests.add(message_id=message_id, due=due, sender_id=sender_id)
    for message_id, due in repair.responses.items():
        proto.repair_responses.add(message_id=message_id, due=due)
    proto.repair_answers_since = repair.answers_since
    for by, count in repair.answers.items():
        proto.repair_answers.add(by=by, count=count)
    if with_kept:
        for own, sizes in repair.sizes.items():
            for message_id, size in sizes.items():
                proto.kept.add(message_id=message_id, data=repair.original(message_id), size=size, own=own)


def _write_waiting(proto: pb.Waiting, waiting: Waiting) -> None:
    proto.message_id, proto.sender_id, proto.lamport = waiting.sds_id, waiting.sender_id, waiting.lamport
    proto.history.extend(waiting.history)
    proto.digest, proto.hint = waiting.digest, waiting.hint or b""
    proto.past = bits_to_bytes(waiting.past)
    if waiting.content is not None:
        proto.content = waiting.content
    proto.received_at = waiting.received_at
    proto.unmet.extend(reversed(waiting.unmet))
    proto.size = waiting.size
    proto.lost.extend(waiting.lost)
    proto.before_observation.extend(waiting.before_observation)
    proto.repaired, proto.replaces, proto.late = waiting.repaired, waiting.replaces, waiting.late
    proto.verified, proto.won = waiting.verified, waiting.won
    if waiting.unproven:
        proto.unproven_for = waiting.sds_id
    elif waiting.is_further_send:
        proto.repeat_of = waiting.sds_id


def _read_waiting(proto: pb.Waiting) -> Waiting:
    key: Key = proto.message_id
    if proto.HasField("repeat_of"):
        key = SendKey(proto.repeat_of, proto.sender_id, proto.lamport)
    elif proto.HasField("unproven_for"):
        key = SendKey(proto.unproven_for, proto.sender_id, proto.lamport)
    waiting = Waiting(
        key,
        proto.sender_id,
        proto.lamport,
        tuple(proto.history),
        proto.digest,
        proto.content if proto.HasField("content") else None,
        proto.hint or None,
        proto.received_at,
    )
    waiting.past = int.from_bytes(proto.past, "little")
    waiting.unmet = [*reversed(proto.unmet)]
    waiting.size = proto.size
    waiting.lost, waiting.before_observation = list(proto.lost), tuple(proto.before_observation)
    waiting.repaired, waiting.replaces, waiting.late = proto.repaired, proto.replaces, proto.late
    waiting.verified, waiting.won = proto.verified, proto.won
    waiting.unproven = proto.HasField("unproven_for")
    return waiting


def _write_missing(proto: pb.Missing, missing: Missing, texts: _Texts) -> None:
    proto.message_id, proto.hint, proto.since = missing.message_id, missing.hint or b"", missing.since
    proto.refetches, proto.due, proto.charged_to = missing.refetches, missing.due, texts.number(missing.charged_to)
    if missing.sender_id is not None:
        proto.sender = texts.number(missing.sender_id)
    proto.lost_at = missing.lost_at
    for sender_id, hint in missing.others:
        proto.others.add(sender=None if sender_id is None else texts.number(sender_id), hint=hint or b"")
    for by, (via, directly) in missing.reached.items():
        proto.reached.add(by_text=texts.number(by), via_text=texts.number(via), directly=directly)


def _read_missing(proto: pb.Missing, texts: _Texts) -> Missing:
    missing = Missing(
        proto.message_id,
        _read_sender(proto, texts),
        proto.hint or None,
        proto.since,
        proto.due,
        proto.lost_at,
        texts.of(proto.charged_to),
    )
    missing.refetches = proto.refetches
    for each in proto.others:
        missing.others.append((_read_sender(each, texts), each.hint or None))
    for reached in proto.reached:
        missing.reached[texts.of(reached.by_text)] = (texts.of(reached.via_text), reached.directly)
    return missing


def _read_sender(proto: pb.Missing | pb.Naming, texts: _Texts) -> str | None:
    return texts.of(proto.sender) if proto.HasField("sender") else None


def _write_tracked(proto: pb.SdsState, review: AckReview, texts: _Texts) -> None:
    rows = list(review.table)
    proto.tracked_ids.extend([tracked.message_id for tracked in rows])
    proto.tracked_senders.extend([tracked.sender_id for tracked in rows])
    proto.tracked_lamports.extend([tracked.lamport for tracked in rows])
    proto.tracked_since.extend([tracked.since for tracked in rows])
    proto.tracked_acked.extend([bits_to_bytes(tracked.acked) for tracked in rows])
    proto.tracked_implied.extend([bits_to_bytes(tracked.implied) for tracked in rows])
    proto.tracked_certain.extend([bits_to_bytes(tracked.certain) for tracked in rows])
    proto.tracked_reached.extend([bits_to_bytes(tracked.reached) for tracked in rows])
    participants = review.participants
    proto.participants_proving = bits_to_bytes(participants.proving)
    for number in range(len(participants)):
        if (lamport := participants.first_lamport(number)) is not None:
            proto.participants_heard.add(by=number, lamport=lamport)
        count, last = participants.messages(number)
        proto.participant_messages.append(count)
        proto.participant_last.append(last)
    for row, tracked in enumerate(rows):
        for by, vias in tracked.hits.items():
            for via in vias:
                proto.tracked_hits.add(row=row, by=review.participants.number(by), via_text=texts.number(via))


def _read_tracked(proto: pb.SdsState, participants: list[str], texts: _Texts) -> list[Tracked]:
    acked, certain = _read_bits(proto.tracked_acked), _read_bits(proto.tracked_certain)
    if max(acked, default=0) >> len(participants):
        raise ValueError("an acknowledgement by nobody known")
    implied, reached = _read_bits(proto.tracked_implied), _read_bits(proto.tracked_reached)
    columns = (proto.tracked_ids, proto.tracked_senders, proto.tracked_lamports, proto.tracked_since)
    rows = [Tracked(*row) for row in zip(*columns, acked, implied, certain, reached, strict=True)]
    for hit in proto.tracked_hits:
        rows[hit.row].hits.setdefault(participants[hit.by], []).append(texts.of(hit.via_text))
    return rows


def _read_bits(column: Iterable[bytes]) -> list[int]:
    stored = list(column)
    numbers = {bits: int.from_bytes(bits, "little") for bits in set(stored)}  # few differ
    return [numbers[bits] for bits in stored]


def _write_send(proto: pb.Send, send: OwnSend) -> None:
    proto.send_id, proto.required = send.send_id, send.required
    proto.delivered, proto.failed = send.delivered, send.failed
    proto.complete_for.extend(send.complete_for)
    for segment in send.segments:
        proto.segments.add(
            message_id=segment.message_id,
            data=segment.data,
            attempts=segment.attempts,
            wait=segment.wait,
            due=segment.due,
            queued_at=segment.queued_at,
            state=_STATES.index(segment.state),
        )


def _read_send(proto: pb.Send, state: ChannelState) -> None:
    segments = []
    for index, stored in enumerate(proto.segments):
        segment = OwnSegment(stored.message_id, index, stored.data, stored.wait)
        segment.attempts = stored.attempts
        segment.due = stored.due if stored.HasField("due") else None
        segment.queued_at = stored.queued_at if stored.HasField("queued_at") else None
        segment.state = _STATES[stored.state]
        segments.append(segment)
    send = OwnSend(proto.send_id, proto.required, segments)
    send.delivered, send.failed = proto.delivered, proto.failed
    send.complete_for = dict.fromkeys(proto.complete_for)
    for segment in segments:
        tracked = state.review.table.get(segment.message_id)
        for by in state.review.participants.of(tracked.acked) if tracked is not None else ():
            send.by_count[by] = send.by_count.get(by, 0) + 1
    state.outgoing.restore(send)
