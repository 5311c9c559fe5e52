"""The function of an ingest task, as Spark calls it: any cut into Arrow batches writes and tells the same."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.config import ChannelsSettings, ChannelTopic, PathSettings, PipelineSettings, QuotaSettings
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.handover import deserialize
from reliable_channel.pipeline.ingest.admission import read_candidates
from reliable_channel.pipeline.ingest.task import (
    IngestResult,
    IngestTask,
    OffsetGap,
    PartitionSummary,
    find_missing_offsets,
)
from tests.support.examples import examples

TOPIC, PUBSUB = "/app/1/chat/proto", "/waku/2/rs/1/0"
START_US = 1_767_225_600_000_000
PLACE = ("waku.envelopes", 3)


def envelope(number: int, topic: str = TOPIC) -> bytes:
    sds = SdsMessage("alice", f"m{number}", "talk", START_US // 1000 + number, content=b"hello %d" % number)
    return encode_waku_message(WakuMessage(encode_sds_message(sds), topic, timestamp=number))


def record(offset: int, kind: str, time_us: int) -> dict[str, Any]:
    value = {"sds": envelope(offset), "plain": envelope(offset, "/other/1/x/json"), "bad": b"\xff" * 40, "none": None}
    return {
        "topic": PLACE[0],
        "partition": PLACE[1],
        "offset": offset,
        "record_time": time_us,
        "ingest_time": START_US + 5_000_000,
        "time_us": time_us,
        "value": value[kind],
        "pubsub_header": PUBSUB.encode(),
        "source_header": b"relay",
    }


SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("record_time", pa.timestamp("us", tz="UTC")),
        ("ingest_time", pa.timestamp("us", tz="UTC")),
        ("time_us", pa.int64()),
        ("value", pa.binary()),
        ("pubsub_header", pa.binary()),
        ("source_header", pa.binary()),
    ]
)
RECORDS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(["sds", "plain", "bad", "none"]), st.integers(0, 9)),
    min_size=1,
    max_size=12,
)


def run(
    records: list[dict[str, Any]], cuts: list[int], refused: dict[tuple[str, int, int], str]
) -> tuple[IngestResult, dict[str, list[dict[str, Any]]]]:
    channels = ChannelsSettings(content_topics=(ChannelTopic(content_topic=TOPIC),))
    table = pa.Table.from_pylist(records, schema=SCHEMA)
    ends = sorted({0, len(records), *(cut % (len(records) + 1) for cut in cuts)})
    batches = [table.slice(a, b - a).combine_chunks().to_batches()[0] for a, b in pairwise(ends)]
    with tempfile.TemporaryDirectory() as place:
        paths = PathSettings(run_dir=place)
        for name in ("envelopes", "sds_messages", "quarantine"):
            Path(paths.table(name)).mkdir(parents=True)
        quotas = QuotaSettings(window_ms=60_000)
        task = IngestTask(
            paths, channels, PipelineSettings().quarantine_raw_bytes, quotas, {PLACE: START_US + 3}, refused
        )
        result = IngestResult.of(
            deserialize(row["task_result"]) for batch in task(iter(batches)) for row in batch.to_pylist()
        )
        rows = {
            file.table: pq.read_table(Path(paths.table(file.table)) / file.path).to_pylist() for file in result.files
        }
        topics = {(group[0], group[2][:2]) for group in result.groups}
        asked = [*read_candidates(result.files, paths, quotas, topics)]
    assert sum(one.cost.messages for one in asked) == sum(group[3].messages for group in result.groups)
    assert [one.offset for one in asked] == [row["kafka_offset"] for row in rows.get("sds_messages", [])]
    return result, rows


@settings(max_examples=examples(40), deadline=None)
@given(RECORDS, st.lists(st.integers(0, 12), max_size=4), st.sets(st.integers(0, 11), max_size=3))
def test_a_cut_into_arrow_batches_decides_nothing(
    steps: list[tuple[int, str, int]], cuts: list[int], above: set[int]
) -> None:
    records, offset = [], 0
    for jump, kind, late in steps:
        offset += jump
        records.append(record(offset, kind, START_US + 10 - late))
    refused = {(*PLACE, records[index]["offset"]): "quota" for index in above if index < len(records)}
    result, rows = run(records, cuts, refused)
    whole, all_rows = run(records, [], refused)
    assert rows == all_rows
    assert (result.parts, sorted(result.groups)) == (whole.parts, sorted(whole.groups))

    kinds = {r["offset"]: kind for r, (_, kind, _) in zip(records, steps, strict=True)}
    times = [row["event_time"] for row in rows.get("envelopes", [])]
    assert times == sorted(times), "event time never goes back"
    sent = [o for o, kind in kinds.items() if kind == "sds" and (*PLACE, o) not in refused]
    assert [row["kafka_offset"] for row in rows.get("sds_messages", [])] == sent
    assert {row["kafka_offset"] for row in rows.get("quarantine", [])} == {
        o for o, kind in kinds.items() if kind in ("bad", "none") or (*PLACE, o) in refused
    }
    (part,) = result.parts.values()
    missing = {o for gap in part.gaps for o in range(gap.first, gap.last + 1)}
    assert missing == set(range(part.first_offset, part.last_offset + 1)) - kinds.keys()
    assert part.quarantined == len(rows.get("quarantine", []))
    assert part.last_us >= START_US + 3, "the recorded clock is the floor"


def test_an_answer_can_be_read_by_a_driver_that_got_two() -> None:
    one, _ = run([record(1, "sds", START_US)], [], {})
    told = IngestResult({}, [], one.files)
    assert IngestResult.of([told, told]).files == one.files * 2
    with pytest.raises(RuntimeError, match="Two tasks have read"):
        IngestResult.of([one, one])


def test_the_first_records_of_a_partition_are_missing_if_they_came_since_the_source_began() -> None:
    """Partition 3 begins at 6: it is new, or was there and quiet, or is read for the first time from there."""
    parts = {PLACE: PartitionSummary(6, 9, 70, 90, 100)}
    topic, number = PLACE
    before = {(topic, 0): Progress(50, 8), (topic, 1): Progress(40, 8), ("another", 0): Progress(10, 8)}
    assert find_missing_offsets(parts, before, {topic: {0: 8, 1: 8}}) == {PLACE: [OffsetGap(0, 5, 40, 70)]}
    assert find_missing_offsets(parts, before, {topic: {0: 8, number: 2}}) == {PLACE: [OffsetGap(2, 5, 40, 70)]}
    assert find_missing_offsets(parts, {}, {topic: {number: 2}}) == {PLACE: [OffsetGap(2, 5, None, 70)]}
    assert find_missing_offsets(parts, {}, {topic: {number: 6}}) == {}
    assert find_missing_offsets(parts, before, {}) == {}
