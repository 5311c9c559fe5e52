"""The pipeline's part: a record's decoding, segment sets, and the observer with all before it."""

from __future__ import annotations

import json

import pyarrow as pa

from reliable_channel.config import load
from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import WireFamily, decode_sds_message
from reliable_channel.core.wire.segment import decode_segment
from reliable_channel.evidence.intake import EvidenceRecord, convert_record
from reliable_channel.lake.schema import Row
from reliable_channel.pipeline import functions
from reliable_channel.pipeline.ack.observer import ChannelObserver
from reliable_channel.pipeline.ingest.decode import Decoded, RecordDecoder
from reliable_channel.pipeline.reassembly.set_results import Message
from reliable_channel.pipeline.reassembly.sets import HashSets, SegmentRow
from tests.fuzz import inputs
from tests.fuzz.cases_format import Step, Target
from tests.support.adapters import SETS, Adapters

PLACE = ("waku.envelopes", 0)
STATE_BYTES = 200_000
STATE_BYTES_PER_INPUT_BYTE = 6
"""A state is at most this large: what one filter and its like need, and a multiple of all input."""


def _bounded(state: int, steps: list[Step]) -> None:
    given = sum(len(step.data) for step in steps)
    assert state <= STATE_BYTES + STATE_BYTES_PER_INPUT_BYTE * given, f"{state} bytes of state for {given} of input"


# ---- one record --------------------------------------------------------------------------------------------------

_SETTINGS = load("local")


def check_ingest(steps: list[Step]) -> None:
    """Every record becomes a row of a kind; a quarantined one has a reason. Together they become the same rows."""
    decoder = RecordDecoder(_SETTINGS.channels)
    records, rows = [], []
    for step in steps:
        if step.kind == "evidence":
            convert_record(EvidenceRecord(0, 0, step.data), PLACE[0])
            continue
        header = step.data[:30] if step.kind == "header" else b"/waku/2/rs/1/0"
        record = (step.data, header, b"relay", (inputs.START_MS + step.after_ms) * 1000)
        row = decoder.decode(*record)
        assert row.kind in ("sds", "plain", "quarantined", None)
        assert row.reason or row.kind in ("sds", "plain")
        records.append(record)
        rows.append(row)
    if records:
        batch = functions.decode_batch(decoder, *(pa.array(column) for column in zip(*records, strict=True)))
        assert batch.equals(functions.records(rows))


INGEST = Target(
    "ingest",
    inputs.steps(
        ("record", inputs.envelopes(inputs.sds_bytes())),
        ("record", inputs.envelopes(inputs.sds_bytes(WireFamily.NIM))),
        ("header", inputs.envelopes(inputs.sds_bytes())),
        ("evidence", inputs.json_bodies),
        most=4,
    ),
    check_ingest,
)


# ---- segment sets ------------------------------------------------------------------------------------------------


def check_reassembly(steps: list[Step]) -> None:
    """Sets whose state goes through its bytes after every step give the same results as those that stay in memory."""
    results: list[list[Row]] = [[], []]
    for stored in (False, True):
        now, sets = inputs.START_MS, {}
        for offset, step in enumerate(steps):
            now += step.after_ms
            message = decode_sds_message(step.data)
            if isinstance(message, Malformed) or message.content is None:
                continue
            segment = decode_segment(message.content)
            if isinstance(segment, Malformed) or (segment.is_bare and segment.data_count == 1):
                continue
            key = segment.entire_message_hash
            held = sets.setdefault(key, HashSets(SETS))
            row = SegmentRow(
                *PLACE,
                offset,
                now * 1000,
                inputs.PUBSUB,
                inputs.TOPIC,
                inputs.CHANNEL,
                "spec",
                message.sender_id,
                message.message_id,
                message.lamport_timestamp,
                segment.dialect.value,
                message.content,
            )
            results[stored] += held.add(row)
            if stored:
                sets[key] = HashSets.from_bytes(held.to_bytes(), SETS)
        _bounded(sum(len(held.to_bytes()) for held in sets.values()), steps)
    assert _rows(results[0]) == _rows(results[1])
    for result in results[0]:
        if isinstance(result, Message) and result.payload is not None:
            assert result.payload in inputs.PAYLOADS


def _rows(results: list[Row]) -> list[str]:
    return [repr(result) for result in results]


REASSEMBLY = Target(
    "reassembly",
    inputs.steps(("segment", inputs.sds_bytes_of(inputs.segments())), most=15),
    check_reassembly,
)


# ---- observer ----------------------------------------------------------------------------------------------------


class StoredAdapters(Adapters):
    """The same chain with every channel's state restored from its bytes before every record."""

    def record(self, offset: int, value: bytes, headers: dict[str, bytes], at_ms: int) -> Decoded:
        for key, observer in self._channels.items():
            self._channels[key] = ChannelObserver.from_bytes(observer.to_bytes(), key, None, SdsParameters(), None)
        return super().record(offset, value, headers, at_ms)

    def state_bytes(self) -> int:
        return sum(len(observer.to_bytes()) for observer in self._channels.values())


def check_observer(steps: list[Step]) -> None:
    """Whatever arrives, what is delivered is what was sent under that sender; a stored state changes nothing."""
    kept, stored = Adapters(), StoredAdapters()
    now = inputs.START_MS
    for offset, step in enumerate(steps):
        now += step.after_ms
        for adapters in (kept, stored):
            adapters.record(offset, step.data, {"pubsub_topic": b"/waku/2/rs/1/0", "source": b"relay"}, now)
    _bounded(stored.state_bytes(), steps)
    for adapters in (kept, stored):
        adapters.close(now + 3_600_000)
    assert kept.outputs == stored.outputs
    sent = _sent(steps)
    for row in kept.tables.messages:
        assert (row.sender, row.payload) in sent or row.payload in inputs.PAYLOADS, row
    numbers: dict[tuple[str, ...], list[int]] = {}
    for table, text in kept.outputs:
        fields = json.loads(text)
        if table == "deliveries" and fields["row_kind"] == "message":
            channel = (fields["pubsub_topic"], fields["content_topic"], fields["channel_id"])
            numbers.setdefault(channel, []).append(fields["delivery_seq"])
    for found in numbers.values():
        assert found == list(range(1, len(found) + 1))


def _sent(steps: list[Step]) -> set[tuple[str, bytes | None]]:
    decoder = RecordDecoder(_SETTINGS.channels)
    rows = [decoder.decode(step.data, b"/waku/2/rs/1/0", b"relay", inputs.START_MS * 1000) for step in steps]
    return {(str(row.sender_id), row.content) for row in rows}


OBSERVER = Target("observer", inputs.steps(("record", inputs.envelopes(inputs.sds_bytes())), most=15), check_observer)
