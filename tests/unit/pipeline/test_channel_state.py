"""The ack job's state: whatever is kept, lost, read again or done twice, the rows that are written are the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reliable_channel.core.sds import SdsParameters, Tracking
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.core.wire.bloom import FilterFamily, FilterFormat
from reliable_channel.core.wire.sds import HistoryEntry, WireFamily
from reliable_channel.pipeline.ack import channel_state, due_times, stream
from reliable_channel.pipeline.ack.channel_state import Channels, LiveChannels, Rules, name_of
from reliable_channel.pipeline.ack.observer import GUARDED_MS, ChannelKey
from reliable_channel.pipeline.ack.records import InputRow
from tests.support.ack_rows import NOW, content_row
from tests.support.cuts import PHASES, PLACE, channels, cut
from tests.support.examples import examples
from tests.unit.pipeline.buckets import NO_CHANNEL, FakeBucket, frame_of

KEYS = [("p", "c", *name) for name in (("talk", "spec"), ("talk", "nim"), ("else", "spec"))]
RULES = Rules(None, SdsParameters(), None)
DAY_US = 24 * 3_600_000_000
Key = ChannelKey | tuple[None, None, None, None]


@dataclass
class Worker:
    """A Python worker: what it keeps, and what it writes for a micro-batch."""

    live: LiveChannels

    def batch(self, bucket: FakeBucket, rows: dict[Key, list[InputRow]], rules: Rules = RULES) -> list[Any]:
        channels = Channels(bucket, 0, lambda key: rules, "query", self.live)
        found = [*stream.process(channels, iter([frame_of(key, some) for key, some in rows.items()]))]
        channels.close()
        return [(type(result).__name__, result._asdict()) for result in found]  # type: ignore[attr-defined]


def whole(key: ChannelKey, rows: list[InputRow], rules: Rules = RULES) -> list[Any]:
    observer = rules.observer(key, None)
    return [(type(output).__name__, output._asdict()) for row in rows for output in observer.take(row)]


def sorted_rows(found: list[Any]) -> list[str]:
    return sorted(map(repr, found))


def merged(rows: Sequence[list[InputRow]]) -> list[tuple[Key, InputRow]]:
    """The rows of some channels as in their Kafka partition, with ticks for all of them."""
    by_time = sorted(
        (
            (NO_CHANNEL if row.row_kind == "tick" else key, row)
            for key, some in zip(KEYS, rows, strict=True)
            for row in some
        ),
        key=lambda pair: pair[1].event_us,
    )
    last = by_time[-1][1]
    ends = [
        InputRow("tick", *PLACE, 0, last.event_us + later)
        for later in (2 * DAY_US, 4 * DAY_US, 10 * DAY_US + GUARDED_MS * 1000)
    ]
    return [
        (key, row._replace(kafka_offset=offset))
        for offset, (key, row) in enumerate([*by_time, *((NO_CHANNEL, tick) for tick in ends)])
    ]


@settings(
    max_examples=examples(25), deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.tuples(*(channels() for _ in KEYS)),
    cuts=st.lists(st.integers(0, 10_000), max_size=12),
    expiry_ms=st.sampled_from([None, 1, 10**7]),
    journals=st.sampled_from([(10**6, 8192), (3, 400), (3, 0)]),
    page_bytes=st.sampled_from([(0, 0), (300, 60), (1_000, 4_096)]),
    chance=st.randoms(use_true_random=False),
)
def test_any_worker_may_take_any_micro_batch_and_any_of_them_may_fail(
    monkeypatch: pytest.MonkeyPatch,
    rows: tuple[list[InputRow], ...],
    cuts: list[int],
    expiry_ms: int | None,
    journals: tuple[int, int],
    page_bytes: tuple[int, int],
    chance: Any,
) -> None:
    monkeypatch.setattr(channel_state, "MOST_PAGES", journals[0])
    monkeypatch.setattr(channel_state, "LEAST_JOURNAL_BYTES", journals[1])
    monkeypatch.setattr(channel_state, "PAGE_BYTES", page_bytes[0])
    rules = Rules(None, SdsParameters(), expiry_ms)
    monkeypatch.setattr(due_times, "PAGE_BYTES", page_bytes[1])
    given = merged(rows)
    expected = [
        result for key in KEYS for result in whole(key, [row for of, row in given if of in (key, NO_CHANNEL)], rules)
    ]
    workers = [Worker(LiveChannels(limit)) for limit in (10**9, 10**9, 5_000)]
    bucket, found = FakeBucket(), []
    for piece in cut(given, cuts):
        now: dict[Key, list[InputRow]] = {}
        for key, row in piece:
            now.setdefault(key, []).append(row)
        for _ in range(chance.choice([0, 0, 0, 1, 2])):  # attempts that are not committed
            chance.choice(workers).batch(FakeBucket(bucket), now, rules)
        found += chance.choice(workers).batch(bucket, now, rules)
    assert sorted_rows(found) == sorted_rows(expected)
    if expiry_ms is not None:
        left = pb.BucketProto.FromString(bucket.stored_head or b"").due
        assert (bucket.channel_bytes(), [*left]) == (0, []), "nothing is left of channels that ended"


def talk(count: int, first: int = 0) -> list[InputRow]:
    return [
        content_row(b"%d" % n, sds_id=f"{n}", lamport_timestamp=NOW + n)._replace(kafka_offset=n)
        for n in range(first, first + count)
    ]


def test_a_micro_batch_writes_what_came_not_what_the_channel_remembers() -> None:
    key, worker, bucket = KEYS[0], Worker(LiveChannels()), FakeBucket()
    worker.batch(bucket, {key: talk(1_999)})
    worker.batch(bucket, {key: talk(1, 1_999)})  # the first entry brings its settings along
    full = bucket.channel_bytes()
    bucket.touched = 0
    worker.batch(bucket, {key: talk(2, 2_000)})
    assert 0 < bucket.channel_bytes() - full < 1_000 < full / 100
    assert bucket.touched == 1, "one more entry, and nothing is read"


@pytest.mark.parametrize(("kept", "first", "last"), [(True, 500, 900), (False, 100, 350)])
def test_the_journal_of_a_channel_stays_a_part_of_its_snapshot(kept: bool, first: int, last: int) -> None:
    """To restore the channel takes ever longer where the worker does not keep it, so there it is a shorter one."""
    key, worker, bucket = KEYS[0], Worker(LiveChannels()), FakeBucket()
    worker.batch(bucket, {key: talk(first)})
    for number in range(first, last):
        worker = worker if kept else Worker(LiveChannels())
        worker.batch(bucket, {key: talk(1, number)})
        stored = bucket.entries[name_of(key), channel_state._SNAPSHOT]
        snapshot = channel_state.pb.ChannelSnapshotProto.FromString(stored).size if kept else len(stored)  # type: ignore[attr-defined]
        assert bucket.channel_bytes() <= 1.3 * snapshot + channel_state.LEAST_JOURNAL_BYTES
        assert len(bucket.entries) <= channel_state.MOST_PAGES + 3


def test_a_channel_is_restored_with_a_call_a_page_not_a_row() -> None:
    key, bucket = KEYS[0], FakeBucket()
    Worker(LiveChannels()).batch(bucket, {key: talk(200)})
    for number in range(200, 230):
        bucket.touched = 0
        Worker(LiveChannels()).batch(bucket, {key: talk(1, number)})
        pages = sum(name == name_of(key) and part >= 0 for name, part in bucket.entries)
        settings = 2  # of a journal are read once a bucket, and written with its first row
        assert bucket.touched <= 2 + pages + settings
    assert pages <= 5, "30 rows"


def test_a_page_is_not_written_again_once_it_is_full() -> None:
    key, worker, bucket = KEYS[0], Worker(LiveChannels()), FakeBucket()
    worker.batch(bucket, {key: talk(2_000)})
    for number in range(2_000, 2_040):
        before = dict(bucket.entries)
        worker.batch(bucket, {key: talk(1, number)})
        changed = [place for place, value in bucket.entries.items() if before.get(place) != value and place[1] != -2]
        assert len(changed) == 1
        assert len(before.get(changed[0], b"")) < channel_state.PAGE_BYTES


def test_a_snapshot_is_compressed() -> None:
    key, bucket = KEYS[0], FakeBucket()
    Worker(LiveChannels()).batch(bucket, {key: talk(500)})
    live = Channels(bucket, 0, lambda key: RULES, "query", LiveChannels()).load(key)
    stored = bucket.entries[name_of(key), channel_state._SNAPSHOT]
    assert live.snapshot_bytes == len(live.observer.to_bytes()) > 2 * len(stored)


def test_what_workers_keep_is_bounded() -> None:
    live, bucket = LiveChannels(50_000), FakeBucket()
    for number in range(200):
        Worker(live).batch(bucket, {("p", "c", f"{number}", "spec"): talk(3)})
    assert 5 <= len(live) <= 25


def test_a_channel_that_ended_elsewhere_does_not_live_on_here() -> None:
    """Nothing was delivered in it, so nothing is left when it has been silent for long."""
    rules = Rules(None, SdsParameters(), 1)
    here, there, bucket = Worker(LiveChannels()), Worker(LiveChannels()), FakeBucket()
    sync = content_row(b"1", sds_id="1")._replace(content_digest=None, sds_kind="sync", segment_kind=None)
    here.batch(bucket, {KEYS[0]: [sync]}, rules)
    there.batch(bucket, {NO_CHANNEL: [InputRow("tick", *PLACE, 1, NOW * 1000 + 10**15)]}, rules)
    assert not bucket.channel_bytes()
    here.batch(bucket, {KEYS[0]: [sync]}, rules)
    assert bucket.entries[name_of(KEYS[0]), 0]
    again = Worker(LiveChannels()).batch(bucket, {KEYS[0]: talk(1)}, rules)
    assert [table for table, _ in again if table == "deliveries"]


def test_rows_are_taken_again_under_the_settings_they_came_under() -> None:
    """A dependency is given up after a while; the next start waits longer. What was written down stands."""
    named = content_row(b"2", sds_id="2", lamport_timestamp=NOW + 5, causal_history=(HistoryEntry("gone"),))
    ticks = [InputRow("tick", *PLACE, 3 + n, (NOW + at) * 1000) for n, at in enumerate((60_000, 120_000))]
    first = Rules(None, SdsParameters(timeout_for_lost_messages_ms=30_000), None)
    longer = Rules(None, SdsParameters(timeout_for_lost_messages_ms=300_000), None)
    bucket = FakeBucket()
    start = [*talk(1), named._replace(kafka_offset=1)]
    told = Worker(LiveChannels()).batch(bucket, {KEYS[0]: start, NO_CHANNEL: ticks[:1]}, first)
    assert "lost_dependencies" in {table for table, _ in told}
    live = Channels(bucket, 0, lambda key: longer, "query", LiveChannels()).load(KEYS[0])
    straight = first.observer(KEYS[0], None)
    for row in (*start, ticks[0]):
        straight.take(row)
    assert live.observer.to_bytes() == straight.to_bytes()


def test_rows_under_other_settings_begin_with_a_snapshot() -> None:
    other = Rules(None, SdsParameters(timeout_for_lost_messages_ms=300_000), None)
    bucket = FakeBucket()
    for number, rules in enumerate((RULES, RULES, other, other)):
        Worker(LiveChannels()).batch(bucket, {KEYS[0]: talk(1, number)}, rules)
        assert ((name_of(KEYS[0]), channel_state._SNAPSHOT) in bucket.entries) == (number >= 2)
    live = Channels(bucket, 0, lambda key: other, "query", LiveChannels()).load(KEYS[0])
    assert (live.rows, live.rules) == (1, other)


def test_settings_are_restored_as_they_were() -> None:
    other = SdsParameters(
        wire_family=[*WireFamily][-1],
        tracking=Tracking.OWN,
        filter_format=FilterFormat([*FilterFamily][-1], 500, 0.01),
        max_tracked=7,
    )
    for rules in (RULES, Rules("alice", other, 5)):
        assert Rules.restore(rules.stored) == rules


def test_state_of_another_version_is_refused() -> None:
    bucket = FakeBucket()
    Worker(LiveChannels()).batch(bucket, {KEYS[0]: talk(1)})
    head = channel_state.pb.BucketProto.FromString(bucket.stored_head or b"")  # type: ignore[attr-defined]
    head.version = 3
    bucket.set_head(head.SerializeToString())
    with pytest.raises(RuntimeError, match=r"version 3 is unknown .* rebuild"):
        Channels(bucket, 0, lambda key: RULES, "query", LiveChannels())


def test_a_channel_is_named_by_all_of_its_key() -> None:
    names = {name_of(key) for key in (("a", "b", "c"), ("a", "bc", ""), ("ab", "", "c"), ("a", "b", "\u00e9" * 9_000))}
    assert len(names) == 4 and {len(name) for name in names} == {32}
