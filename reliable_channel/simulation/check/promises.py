"""Compares the tables with the simulation's truth: pure functions, one per promise, each returning a list of
differences.

An empty list means the promise is kept. Nothing here reads a file, prints or knows Spark.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TypeVar

from reliable_channel.simulation.check.attacks import (
    BEFORE_OBSERVATION,
    LOST,
    drop_attacks,
    find_reordered,
    reduce_histories,
)
from reliable_channel.simulation.check.observed import Difference, Observed
from reliable_channel.simulation.truth import MessageOutcome, TrueMessage, TrueSegment, Truth

LOST_AFTER_MS = 300_000
Key = TypeVar("Key", bound=tuple[object, ...])


def check(truth: Truth, observed: Observed, lost_after_ms: int = LOST_AFTER_MS) -> list[Difference]:
    """All differences, in the order of the promises below. ``lost_after_ms`` is the pipeline's
    ``timeout_for_lost_messages``.

    Rows of hostile senders are checked by separate rules and removed first; the promises about honest messages are then
    the same with and without them."""
    numbers = check_numbers(observed)
    observed, of_attacks = drop_attacks(truth, observed)
    reduced = reduce_histories(truth)
    return [
        *check_messages(truth, observed),
        *check_positions(truth, observed),
        *check_segments(truth, observed),
        *numbers,
        *check_causal_order(reduced, observed, lost_after_ms),
        *check_message_order(reduced, observed, lost_after_ms),
        *check_incomplete(truth, observed),
        *check_lost(truth, observed),
        *check_acknowledgements(truth, observed, lost_after_ms),
        *check_quarantine(truth, observed),
        *of_attacks,
    ]


def check_messages(truth: Truth, observed: Observed) -> list[Difference]:
    """Every recoverable message is delivered, byte for byte and under its sender; none twice; nothing else."""
    promise = "delivered messages"
    expected = {(m.channel_id, m.first_sds_id): m for m in truth.messages if m.outcome == MessageOutcome.DELIVERED}
    every = {(m.channel_id, m.first_sds_id): m for m in truth.messages}
    counts = Counter((row.channel_id, row.first_sds_id) for row in observed.messages)
    out = [
        Difference(promise, channel, _name(expected[channel, sds_id]), "is not delivered")
        for channel, sds_id in expected
        if not counts[channel, sds_id]
    ]
    for (channel, sds_id), times in counts.items():
        if times > 1:
            out.append(Difference(promise, channel, sds_id, f"is delivered {times} times"))
        if (channel, sds_id) not in expected:
            known = every.get((channel, sds_id))
            why = f"cannot be rebuilt ({known.outcome}: {_name(known)})" if known else "was never sent"
            out.append(Difference(promise, channel, sds_id, f"is delivered but {why}"))
    for row in observed.messages:
        message = expected.get((row.channel_id, row.first_sds_id))
        if message is None:
            continue
        if row.payload != message.payload:
            out.append(
                Difference(promise, row.channel_id, _name(message), _describe_bytes(message.payload, row.payload))
            )
        if row.sender != message.sender:
            out.append(Difference(promise, row.channel_id, _name(message), f"is delivered as from {row.sender!r}"))
        if row.ephemeral != message.ephemeral:
            out.append(Difference(promise, row.channel_id, _name(message), f"has ephemeral={row.ephemeral}"))
    return out


def check_positions(truth: Truth, observed: Observed) -> list[Difference]:
    """The causal position is that of the first segment as sent, the same for every observer."""
    expected = {(m.channel_id, m.first_sds_id): m for m in truth.messages}
    out = []
    for row in observed.messages:
        message = expected.get((row.channel_id, row.first_sds_id))
        if message is not None and row.lamport != message.first_lamport:
            what = f"stands at Lamport {row.lamport}, was sent at {message.first_lamport}"
            out.append(Difference("causal position", row.channel_id, _name(message), what))
    return out


def check_segments(truth: Truth, observed: Observed) -> list[Difference]:
    """Every content segment that became known (arrived, or rebuilt from the other segments of its message) is delivered
    once; no other is.

    A parity segment that could be encoded again need not be, unless a message names it."""
    promise = "delivered segments"
    content = [s for s in truth.segments if s.message is not None and s.lamport is not None]
    known = {(s.channel_id, s.sds_id): s for s in content if s.known_at_ms is not None}
    named = {(s.channel_id, sds_id) for s in truth.segments if s.history_seen for sds_id in s.history}
    counts = Counter((row.channel_id, row.sds_id) for row in observed.segments)
    out = [
        Difference(promise, channel, _name_segment(segment), "is not delivered")
        for (channel, sds_id), segment in known.items()
        if not counts[channel, sds_id]
        and (segment.arrived_at_ms is not None or not segment.is_parity or (channel, sds_id) in named)
    ]
    for (channel, sds_id), times in counts.items():
        if times > 1:
            out.append(Difference(promise, channel, sds_id, f"is delivered {times} times"))
        if (channel, sds_id) not in known:
            out.append(Difference(promise, channel, sds_id, "is delivered but never became known"))
    for row in observed.segments:
        segment = known.get((row.channel_id, row.sds_id))
        if segment is None or row.repaired != segment.history_seen:
            continue
        if row.repaired:
            out.append(
                Difference(promise, row.channel_id, _name_segment(segment), "is called repaired, and it arrived")
            )
        elif segment.arrived_at_ms is None or not segment.is_parity:
            what = "was rebuilt, and is not called repaired"
            out.append(Difference(promise, row.channel_id, _name_segment(segment), what))
    return out


def check_numbers(observed: Observed) -> list[Difference]:
    """The rows of a channel's deliveries, and its messages, are numbered 1, 2, 3 …, each number once."""
    given: dict[tuple[str, str], list[int]] = defaultdict(list)
    for channel, number in observed.row_numbers:
        given[channel, "rows of deliveries"].append(number)
    for row in observed.messages:
        given[row.channel_id, "delivered messages"].append(row.delivery_seq)
    return [
        Difference("delivery numbers", channel, kind, "are not numbered 1 … n, each once")
        for (channel, kind), numbers in given.items()
        if sorted(numbers) != list(range(1, len(numbers) + 1))
    ]


def check_causal_order(truth: Truth, observed: Observed, lost_after_ms: int = LOST_AFTER_MS) -> list[Difference]:
    """Within a channel every segment comes after its dependencies, except those that are not waited for: they are older
    than the observation, or arrived after their time-out.

    A rebuilt segment has no causal history here, because parity carries contents, not headers."""
    position = {(row.channel_id, row.sds_id): row.row_seq for row in observed.segments}
    segments = {(s.channel_id, s.sds_id): s for s in truth.segments}
    patience = _find_deadlines(truth, lost_after_ms)
    out = []
    for (channel, sds_id), seq in position.items():
        segment = segments.get((channel, sds_id))
        if segment is None or not segment.history_seen:
            continue
        for dependency in segment.history:
            before = position.get((channel, dependency))
            if before is None or before < seq:
                continue
            named = segments.get((channel, dependency))
            known = None if named is None else named.known_at_ms
            if known is not None and known < patience.get((channel, dependency), known + 1):
                what = f"is row {seq}, before what it depends on ({dependency[:12]}…, row {before})"
                out.append(Difference("causal order", channel, _name_segment(segment), what))
    return out


def check_message_order(truth: Truth, observed: Observed, lost_after_ms: int = LOST_AFTER_MS) -> list[Difference]:
    """A message comes after every message whose *last* segment one of its own segments depends on, unless that one was
    still incomplete at its time-out. (If a message's last segment is not named, the sender itself may have had only a
    part of it.)"""
    messages = {(m.channel_id, m.number): m for m in truth.messages}
    seq = {(row.channel_id, row.first_sds_id): row.delivery_seq for row in observed.messages}
    last = {(m.channel_id, m.last_sds_id): m for m in truth.messages if not m.ephemeral}
    until = _find_deadlines(truth, lost_after_ms)
    patience: dict[tuple[str, int], int] = {}
    for s in truth.segments:
        end = until.get((s.channel_id, s.sds_id))
        if s.message is not None and end is not None:
            key = (s.channel_id, s.message)
            patience[key] = min(patience.get(key, end), end)
    free = find_reordered(truth)
    out = []
    for segment in truth.segments:
        if segment.message is None or not segment.history_seen:
            continue
        message = messages[segment.channel_id, segment.message]
        mine = seq.get((message.channel_id, message.first_sds_id))
        for dependency in segment.history:
            earlier = last.get((segment.channel_id, dependency))
            if earlier is None or earlier is message or earlier.complete_at_ms is None or mine is None:
                continue
            if free & {(message.channel_id, message.number), (earlier.channel_id, earlier.number)}:
                continue
            theirs = seq.get((earlier.channel_id, earlier.first_sds_id))
            complete_at = earlier.complete_at_ms
            in_time = complete_at < patience.get((earlier.channel_id, earlier.number), complete_at + 1)
            if in_time and theirs is not None and theirs > mine:
                what = f"is number {mine}, before {_name(earlier)} (number {theirs}), on which it depends"
                out.append(Difference("message order", message.channel_id, _name(message), what))
    return out


def check_incomplete(truth: Truth, observed: Observed) -> list[Difference]:
    """Every message of which too few segments arrived is reported, with exactly the data segments that are missing."""
    promise = "incomplete messages"
    expected: Counter[tuple[str, str, str, tuple[int, ...]]] = Counter()
    unknown_count: Counter[tuple[str, str, str]] = Counter()
    for m in truth.messages:
        if m.outcome != MessageOutcome.INCOMPLETE:
            continue
        key = (m.channel_id, m.sender, m.announced_keccak)
        if m.arrived_data:
            expected[*key, tuple(m.missing_data)] += 1
        else:  # parity alone does not say how many data segments there are (Segmentation 0.1)
            unknown_count[key] += 1
    actual: Counter[tuple[str, str, str, tuple[int, ...]]] = Counter()
    found_unknown: Counter[tuple[str, str, str]] = Counter()
    for row in observed.incomplete:
        key = (row.channel_id, row.sender, row.payload_hash)
        if row.data_count is None:
            found_unknown[key] += 1
        else:
            actual[*key, row.missing_data] += 1
    return [
        *_differ(promise, expected, actual, "is not named as lacking", "is named as lacking"),
        *_differ(promise, unknown_count, found_unknown, "is not named as parity only", "is named as parity only"),
    ]


def check_lost(truth: Truth, observed: Observed) -> list[Difference]:
    """Every id that arrived messages name and that never became known is reported once, as lost or as older than the
    observation; in the end no other id is."""
    promise = "lost dependencies"
    expected = Counter(
        (d.channel_id, d.sds_id, BEFORE_OBSERVATION if d.before_observation else LOST)
        for d in truth.dependencies
        if d.known_at_ms is None
    )
    return _differ(promise, expected, Counter(observed.lost), "is not named", "is named")


def check_acknowledgements(truth: Truth, observed: Observed, lost_after_ms: int = LOST_AFTER_MS) -> list[Difference]:
    """All certain acknowledgements that arrived are recorded, and none is false: a participant with an acknowledgement
    had the message, and nobody acknowledges their own.

    An id that was named while nobody waited for it any more, or yet, leaves no acknowledgement."""
    promise = "acknowledgements"
    rows = {(a.channel_id, a.sds_id, a.by) for a in observed.acks if a.certain}
    segments = {(s.channel_id, s.sds_id): s for s in truth.segments}
    patience = _find_deadlines(truth, lost_after_ms)
    out = []
    for ack in truth.acks:
        key = (ack.channel_id, ack.sds_id)
        known = segments[key].known_at_ms
        due = known is not None and (known <= ack.at_ms or known < patience.get(key, known + 1))
        if due and (*key, ack.by) not in rows:
            out.append(Difference(promise, ack.channel_id, ack.sds_id, f"by {ack.by} is not in the table"))
    receptions = {(h.channel_id, h.sds_id, h.participant) for h in truth.heard}
    for row in observed.acks:
        segment = segments.get((row.channel_id, row.sds_id))
        if segment is not None and segment.sender == row.by:
            out.append(Difference(promise, row.channel_id, row.sds_id, f"by {row.by}, who sent it"))
        elif (row.channel_id, row.sds_id, row.by) not in receptions:
            out.append(Difference(promise, row.channel_id, row.sds_id, f"by {row.by}, who never had it"))
    return out


def check_quarantine(truth: Truth, observed: Observed) -> list[Difference]:
    """Each invalid record is one quarantine row, with its Kafka coordinates, its reason and its bytes; nothing else
    is."""
    promise = "quarantine"
    expected = {(b.topic, b.partition, b.offset): b for b in truth.bad}
    counts = Counter((row.topic, row.partition, row.offset) for row in observed.quarantine)
    out = [
        Difference(promise, "", f"{b.label} at {_format_position(row_position)}", f"is not quarantined as {b.reason}")
        for row_position, b in expected.items()
        if not counts[row_position]
    ]
    for row in observed.quarantine:
        row_position = (row.topic, row.partition, row.offset)
        bad = expected.get(row_position)
        if bad is None:
            out.append(
                Difference(
                    promise, "", _format_position(row_position), f"is quarantined as {row.reason}, and is not bad"
                )
            )
        elif row.reason != bad.reason:
            out.append(Difference(promise, "", bad.label, f"is quarantined as {row.reason}, not {bad.reason}"))
        elif not _is_kept(row.raw, bad.value):
            out.append(Difference(promise, "", bad.label, "is quarantined with other bytes"))
    out += [
        Difference(promise, "", _format_position(p), f"is quarantined {n} times") for p, n in counts.items() if n > 1
    ]
    return out


def _is_kept(raw: bytes | None, value: bytes | None) -> bool:
    """Whether stored raw bytes, which are bounded, are the beginning of the record."""
    if value is None or raw is None:
        return not raw and not value
    return bool(raw) and value.startswith(raw)


def _differ(promise: str, expected: Counter[Key], actual: Counter[Key], absent: str, present: str) -> list[Difference]:
    out = []
    for key in sorted({*expected, *actual}, key=repr):
        channel, *rest = key
        subject = " ".join(str(part) for part in rest)
        if actual[key] < expected[key]:
            out.append(Difference(promise, str(channel), subject, f"{absent} ({actual[key]} of {expected[key]})"))
        elif actual[key] > expected[key]:
            out.append(Difference(promise, str(channel), subject, f"{present} ({actual[key]}, not {expected[key]})"))
    return out


def _find_deadlines(truth: Truth, lost_after_ms: int) -> dict[tuple[str, str], int]:
    """(channel, SDS id) of ids named before they were known → until when (ms) they were waited for. A stranger may name
    an id first, so the wait may have begun with any naming."""
    until = {
        (d.channel_id, d.sds_id): 0 if d.before_observation else d.first_named_ms + lost_after_ms
        for d in truth.dependencies
    }
    for attack in truth.attacks:
        end = 0 if attack.before_observation else attack.at_ms + lost_after_ms
        for sds_id in attack.names:
            key = (attack.channel_id, sds_id)
            until[key] = min(until.get(key, end), end)
    return until


def _describe_bytes(expected: bytes, actual: bytes | None) -> str:
    if actual is None:
        return "is delivered without its payload"
    if len(actual) != len(expected):
        return f"is delivered with {len(actual)} bytes, {len(expected)} were sent"
    at = next(i for i, (a, b) in enumerate(zip(expected, actual, strict=True)) if a != b)
    return f"is delivered with another byte at {at}"


def _name(message: TrueMessage) -> str:
    return f"message {message.number} of {message.sender}"


def _name_segment(segment: TrueSegment) -> str:
    return f"segment {segment.ordinal} of message {segment.message} of {segment.sender}"


def _format_position(row_position: tuple[str, int, int]) -> str:
    topic, partition, offset = row_position
    return f"{topic}[{partition}]@{offset}"
