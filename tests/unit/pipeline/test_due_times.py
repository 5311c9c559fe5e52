"""A tick goes to every bucket: it finds what is due, and costs next to nothing where nothing is."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.core.wire.sds import HistoryEntry
from reliable_channel.pipeline.ack import due_times, stream
from reliable_channel.pipeline.ack.channel_state import Channels, LiveChannels, Rules
from reliable_channel.pipeline.ack.due_times import Due, DueTimes
from reliable_channel.pipeline.ack.observer import ChannelKey
from reliable_channel.pipeline.ack.records import InputRow
from reliable_channel.pipeline.result_files import Result
from tests.support.ack_rows import NOW, content_row
from tests.support.cuts import PLACE
from tests.unit.pipeline.buckets import NO_CHANNEL, FakeBucket, frame_of

KEY = ("p", "c", "talk", "spec")
DAY_MS = 24 * 3_600_000
EXPIRING = Rules(None, SdsParameters(timeout_for_lost_messages_ms=30_000), 7 * DAY_MS)
ELSEWHERE = ("waku.envelopes", 1)


def processed(
    bucket: FakeBucket,
    rows: dict[ChannelKey, list[InputRow]],
    tick: InputRow | None = None,
    rules: Rules = EXPIRING,
    live: LiveChannels | None = None,
) -> list[Result]:
    """The results of a micro-batch."""
    channels = Channels(bucket, 0, lambda key: rules, "query", LiveChannels() if live is None else live)
    frames = [frame_of(key, some) for key, some in rows.items()] + ([frame_of(NO_CHANNEL, [tick])] if tick else [])
    results = [*stream.process(channels, iter(frames))]
    channels.close()
    return results


def tick_at(at_ms: int, place: tuple[str, int] = PLACE) -> InputRow:
    return InputRow("tick", *place, 10**6, at_ms * 1000)


def entries(bucket: FakeBucket) -> int:
    """The number of entries in the bucket's pages."""
    pages = [value for (name, _), value in bucket.entries.items() if len(name) == due_times._NAME_BYTES]
    return sum(len(pb.DuePageProto.FromString(page).channels) for page in pages)


def naming(number: int, at_ms: int) -> InputRow:
    """A message that names one which has not come, ``gone`` and its number."""
    row = content_row(b"%d" % number, sds_id=f"{number}", lamport_timestamp=at_ms)
    return row._replace(event_us=at_ms * 1000, causal_history=(HistoryEntry(f"gone{number}"),))


def test_a_tick_by_which_nothing_is_due_reads_the_head_and_writes_nothing() -> None:
    bucket, live = FakeBucket(), LiveChannels()
    processed(bucket, {KEY: [content_row(b"1", sds_id="1")]}, live=live)
    head, bucket.touched = bucket.stored_head, 0
    assert processed(bucket, {}, tick_at(NOW + DAY_MS), live=live) == []
    assert (bucket.touched, bucket.stored_head) == (0, head)
    processed(bucket, {KEY: [content_row(b"2", sds_id="2", lamport_timestamp=NOW + 1)]}, live=live)
    assert bucket.touched == 1, "a page is written, and nothing is read: the worker still has the channel"


def test_a_bucket_without_channels_stays_without_state() -> None:
    bucket = FakeBucket()
    processed(bucket, {}, tick_at(NOW))
    assert (bucket.stored_head, bucket.entries) == (None, {})


def test_a_tick_of_another_partition_lets_nothing_fall_due() -> None:
    bucket = FakeBucket()
    processed(bucket, {KEY: [content_row(b"0", sds_id="0"), naming(1, NOW + 1)]})
    assert processed(bucket, {}, tick_at(NOW + DAY_MS, ELSEWHERE)) == []
    assert processed(bucket, {}, tick_at(NOW + DAY_MS))


def test_a_tick_in_the_micro_batch_of_the_message_finds_the_timer() -> None:
    rows = [content_row(b"0", sds_id="0"), naming(1, NOW + 1)]
    tables = [type(row).__name__ for row in processed(FakeBucket(), {KEY: rows}, tick_at(NOW + DAY_MS))]
    assert tables.index("lost_dependencies") < tables.index("deliveries", 1), "delivered, because the other is lost"


def test_the_same_channel_does_not_gather_entries() -> None:
    bucket = FakeBucket()
    for number in range(20):
        at_ms = NOW + number * 60_000
        processed(bucket, {KEY: [naming(number, at_ms)]}, tick_at(at_ms + 10_000))
        came = content_row(b"gone", sds_id=f"gone{number}", lamport_timestamp=at_ms - 1)
        processed(bucket, {KEY: [came._replace(event_us=(at_ms + 11_000) * 1000)]}, tick_at(at_ms + 50_000))
        assert entries(bucket) <= 4


def test_a_new_due_time_is_written_without_those_of_other_channels() -> None:
    bucket = FakeBucket()
    processed(bucket, {("p", "c", f"{number}", "spec"): [content_row(b"1", sds_id="1")] for number in range(500)})
    head, before = bucket.stored_head or b"", dict(bucket.entries)
    processed(bucket, {KEY: [content_row(b"1", sds_id="1")]})
    changed = [value for name, value in bucket.entries.items() if before.get(name) != value]
    assert (len(before) > 500, len(changed)) == (True, 2), "a journal and a page"
    assert sum(map(len, changed)) < 2 * due_times.PAGE_BYTES
    assert len(bucket.stored_head or b"") < len(head) + 20 < 200


def test_settings_that_let_a_channel_end_earlier_count_from_its_next_row() -> None:
    bucket = FakeBucket()
    sync = content_row(b"1", sds_id="1")._replace(content_digest=None, sds_kind="sync", segment_kind=None)
    processed(bucket, {KEY: [sync]}, rules=Rules(None, SdsParameters(), None))
    processed(bucket, {KEY: [sync._replace(sds_id="2", kafka_offset=1)]})
    assert bucket.channel_bytes()
    processed(bucket, {}, tick_at(NOW + 9 * DAY_MS))
    assert not bucket.channel_bytes()


@given(
    steps=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9), st.integers(0, 400)), max_size=30),
            st.dictionaries(st.integers(0, 1), st.integers(0, 400), max_size=2),
        ),
        max_size=6,
    )
)
@example(steps=[([(1, 0, 121)], {}), ([(1, 0, 120)], {}), ([(1, 1, 120)], {}), ([], {1: 120}), ([], {1: 121})])
@example(steps=[([(1, 0, 122), (1, 1, 120)], {}), ([(1, 0, 121)], {}), ([], {1: 120}), ([], {1: 121}), ([], {1: 122})])
def test_what_is_due_is_found_once(steps: list[tuple[list[tuple[int, int, int]], dict[int, int]]]) -> None:
    bucket = FakeBucket()
    waiting: set[tuple[int, int, int]] = set()
    head: list[pb.DuePlaceProto] = []
    for added, ticks in steps:
        dues = DueTimes(bucket, head)
        found = dues.take({("t", partition): at * 1_000_000 for partition, at in ticks.items()})
        expected = {each for each in waiting if each[0] in ticks and each[2] <= ticks[each[0]]}
        assert found == {Due(("p", "c", f"{partition} {name}", "spec"), False) for partition, name, _ in expected}
        waiting -= expected
        # Whoever was found enters its next time again; of several in a slot only the earliest may have been kept.
        again = {each for each in waiting if any(each[:2] == one[:2] for one in expected)}
        for partition, name, at in [*added, *again]:
            dues.add(("t", partition), Due(("p", "c", f"{partition} {name}", "spec"), False), at * 1_000_000)
            waiting.add((partition, name, at))
        head = dues.write()
    assert bool(head) == bool(waiting)
