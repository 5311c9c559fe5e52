"""The buckets of the reassembly job: what is stored of a payload hash, when something is due, and what that costs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from reliable_channel.config import PathSettings
from reliable_channel.core.segmentation import contents_for
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.core.wire.hashing import keccak256, sds_message_id
from reliable_channel.pipeline.reassembly import memory
from reliable_channel.pipeline.reassembly.bucket import SetRules, StoredSets, process
from reliable_channel.pipeline.reassembly.sets import STATE_VERSION
from reliable_channel.pipeline.result_files import Result
from tests.support.buckets import FakeBucket
from tests.support.cuts import CONFIG, PLACE, START, as_frame, segment_row

PAYLOAD = b"p" * 100
HASH = keccak256(PAYLOAD)
LIFETIME = CONFIG.max_set_lifetime_ms


@pytest.fixture(autouse=True)
def nothing_completed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "completed_before", lambda *given: {})


def micro_batch(bucket: FakeBucket, *rows: dict[str, Any]) -> list[Result]:
    stored = StoredSets(bucket)
    results = [*process(stored, [as_frame(rows)], SetRules(CONFIG, PathSettings(run_dir="nowhere"), lambda row: row))]
    stored.close()
    return results


def segments(payload: bytes = PAYLOAD, first: int = 0) -> list[dict[str, Any]]:
    ids = [sds_message_id("alice", START, content) for content in contents_for(payload, CONFIG)]
    return [
        {**segment_row("alice", ids[n], START + n, content, START, payload), **place(first + n)}
        for n, content in enumerate(contents_for(payload, CONFIG))
    ]


def tick(at_ms: int, offset: int = 1_000, partition: int = PLACE[1]) -> dict[str, Any]:
    return {"kind": "tick", "event_us": at_ms * 1000, **place(offset, partition)}


def place(offset: int, partition: int = PLACE[1]) -> dict[str, Any]:
    return {"kafka_topic": PLACE[0], "kafka_partition": partition, "kafka_offset": offset}


def statuses(results: Sequence[Result]) -> list[str]:
    return [result.fields["status"] for result in results if hasattr(result, "fields")]


def hashes(bucket: FakeBucket) -> bytes:
    return pb.SetsBucketProto.FromString(bucket.stored_head or b"").hashes


def test_a_set_that_is_complete_in_the_micro_batch_leaves_nothing() -> None:
    bucket = FakeBucket()
    assert "reassembled_messages" in {type(row).__name__ for row in micro_batch(bucket, *segments(), tick(START))}
    assert (bucket.touched, bucket.stored_head, bucket.entries) == (0, None, {})


def test_a_tick_by_which_nothing_is_due_reads_the_head_and_writes_nothing() -> None:
    bucket = FakeBucket()
    micro_batch(bucket, segments()[0])
    head, bucket.touched = bucket.stored_head, 0
    assert micro_batch(bucket, tick(START + CONFIG.set_timeout_ms - 1)) == []
    assert micro_batch(bucket, tick(START + LIFETIME, partition=PLACE[1] + 1)) == [], "of another partition"
    assert (bucket.touched, bucket.stored_head) == (0, head)
    assert statuses(micro_batch(bucket, tick(START + CONFIG.set_timeout_ms))) == ["overdue"]


def test_a_tick_in_the_micro_batch_of_the_segment_runs_its_timers() -> None:
    bucket = FakeBucket()
    assert statuses(micro_batch(bucket, segments()[0], tick(START + LIFETIME)))[-1] == "given_up"
    assert (bucket.entries, hashes(bucket)) == ({}, b"")


def test_a_tick_before_the_segment_runs_none() -> None:
    bucket = FakeBucket()
    assert micro_batch(bucket, tick(START - 1, offset=0), *segments(first=1)[:1]) == []
    assert hashes(bucket) == HASH[:8]


def test_the_end_of_a_set_removes_all_that_was_stored() -> None:
    bucket = FakeBucket()
    micro_batch(bucket, segments()[0])
    assert statuses(micro_batch(bucket, tick(START + LIFETIME)))[-1] == "given_up"
    assert (bucket.entries, hashes(bucket)) == ({}, b"")


def test_a_due_time_that_moved_back_writes_no_sets() -> None:
    bucket = FakeBucket()
    micro_batch(bucket, segments()[0])
    copy = {**segments()[0], "event_us": (START + 10_000) * 1000, **place(1)}
    micro_batch(bucket, copy)  # its sender is still sending it
    before = bucket.entries[HASH, -1]
    assert micro_batch(bucket, tick(START + CONFIG.set_timeout_ms)) == []
    assert bucket.entries[HASH, -1] is before
    assert statuses(micro_batch(bucket, tick(START + 10_000 + CONFIG.set_timeout_ms))) == ["overdue"]


def test_hashes_that_are_not_stored_are_not_looked_up() -> None:
    bucket = FakeBucket()
    micro_batch(bucket, segments()[0])
    bucket.touched = 0
    micro_batch(bucket, *(row for n in range(20) for row in segments(b"%d" % n * 70, first=n * 10)))
    assert bucket.touched == 0


def test_two_hashes_with_the_same_first_bytes_are_two() -> None:
    bucket, twin = FakeBucket(), HASH[:8] + bytes(24)
    other = {**segments(first=5)[0], "state_key": twin, "event_us": (START + 60_000) * 1000}
    micro_batch(bucket, segments()[0], other)
    assert hashes(bucket) == 2 * HASH[:8]
    micro_batch(bucket, tick(START + LIFETIME))
    assert (hashes(bucket), {name for name, part in bucket.entries if part < 0}) == (HASH[:8], {twin})


def test_a_hash_that_is_short_keeps_the_others_apart() -> None:
    bucket = FakeBucket()
    micro_batch(bucket, segments()[0], {**segments(first=5)[0], "state_key": b"short"})
    assert sorted([hashes(bucket)[:8], hashes(bucket)[8:]]) == sorted([HASH[:8], b"short\0\0\0"])


def test_state_of_another_version_is_refused() -> None:
    bucket = FakeBucket()
    bucket.stored_head = pb.SetsBucketProto(version=STATE_VERSION + 1).SerializeToString()
    with pytest.raises(RuntimeError, match="reliable-channel rebuild"):
        StoredSets(bucket)
