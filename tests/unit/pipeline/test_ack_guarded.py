"""A row on which the state machine fails is set aside and named; nothing else of its channel changes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reliable_channel.core.errors import LocalError
from reliable_channel.core.sds import SdsChannel, SdsParameters, SdsStep
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.sds import SdsMessage
from reliable_channel.lake.schema import Row
from reliable_channel.lake.tables import BY_NAME
from reliable_channel.pipeline.ack import stream
from reliable_channel.pipeline.ack.buckets import Buckets
from reliable_channel.pipeline.ack.channel_state import Channels, Rules
from reliable_channel.pipeline.ack.observer import GUARDED_MS, ChannelObserver
from reliable_channel.pipeline.ack.output_rows import ChannelEvent, Delivery
from reliable_channel.pipeline.ack.records import InputRow
from reliable_channel.pipeline.ack.stream import apply_rows
from reliable_channel.pipeline.guarded import FailedRows, collect
from reliable_channel.pipeline.reassembly.sets import HashSets
from reliable_channel.pipeline.result_files import PACKED, unpack
from tests.support.ack_rows import KEY, NOW, content_row
from tests.support.cuts import channels, cut
from tests.support.examples import examples
from tests.unit.pipeline.buckets import NO_CHANNEL, FakeBucket, frame_of

BAD = "fails"
DAY_MS = 24 * 3_600_000


@pytest.fixture(autouse=True)
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """SDS fails on some messages, when it has changed the state already; the error's text is long."""
    real = SdsChannel.receive

    def receive(self: SdsChannel, message: SdsMessage, now: int, **options: Any) -> SdsStep:
        step = real(self, message, now, **options)
        if message.message_id.startswith(BAD):
            raise KeyError(message.message_id * 100)
        return step

    monkeypatch.setattr(SdsChannel, "receive", receive)


def restore(blob: bytes | None) -> ChannelObserver:
    if blob is None:
        return ChannelObserver(KEY, None, SdsParameters())
    return ChannelObserver.from_bytes(blob, KEY, None, SdsParameters())


def in_pieces(rows: list[InputRow], cuts: list[int]) -> tuple[list[Row], int, bytes]:
    outputs: list[Row] = []
    failed, state = 0, None
    for piece in cut(rows, cuts):
        begins = state

        def again(blob: bytes | None) -> ChannelObserver:
            return restore(begins if blob is None else blob)  # noqa: B023 - used in this turn only

        more, (observer, bad) = collect(apply_rows(restore(state), again, piece))
        outputs, failed = outputs + more, failed + len(bad)
        state = None if observer.is_blank else observer.to_bytes()
    return outputs, failed, state or b""


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=channels(), data=st.data(), cuts=st.lists(st.integers(0, 10_000), max_size=4))
def test_the_other_rows_lead_to_what_they_would_without_the_failing_ones(
    rows: list[InputRow], data: st.DataObject, cuts: list[int]
) -> None:
    mixed: list[InputRow] = []
    for row in rows:
        mixed.append(row)
        for number in range(data.draw(st.sampled_from([0, 0, 1, 2]))):
            mixed.append(
                content_row(b"x", sds_id=f"{BAD}{len(mixed)}.{number}", lamport_timestamp=NOW)._replace(
                    event_us=row.event_us
                )
            )
    bad = [row for row in mixed if str(row.sds_id).startswith(BAD)]
    expected, _, state = in_pieces(rows, [])
    outputs, failed, found = in_pieces(mixed, cuts)
    failed_ids = [o.sds_id for o in outputs if getattr(o, "event", None) == "row_failed"]
    assert (failed_ids, failed) == ([row.sds_id for row in bad], len(bad))
    assert [o for o in outputs if getattr(o, "event", None) != "row_failed"] == expected
    assert found == state


def test_the_event_names_the_record_and_is_bounded() -> None:
    row = content_row(b"x", sds_id=BAD)._replace(kafka_topic="t", kafka_partition=3, kafka_offset=99)
    outputs, _ = collect(apply_rows(restore(None), restore, [row]))
    (event,) = [o._asdict() for o in outputs if isinstance(o, ChannelEvent)]
    place = {"kafka_topic": "t", "kafka_partition": 3, "kafka_offset": 99, "sender_id": "alice", "sds_id": BAD}
    assert event.items() >= {**place, "event": "row_failed", "event_time": NOW * 1000}.items()
    assert event["detail"].startswith("message row: KeyError in receive, line ") and len(event["detail"]) < 400
    assert {*event} <= {*BY_NAME["channel_events"].names()}


def test_each_row_is_taken_twice_at_most_however_many_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    taken_rows = 0
    real = ChannelObserver.take

    def take(self: ChannelObserver, row: InputRow) -> list[Row]:
        nonlocal taken_rows
        taken_rows += 1
        return real(self, row)

    monkeypatch.setattr(ChannelObserver, "take", take)
    rows = [
        content_row(b"%d" % n, sds_id=f"{BAD if n % 2 else 'fine'}{n}", lamport_timestamp=NOW + n) for n in range(40)
    ]
    _, (_, failed) = collect(apply_rows(restore(None), restore, rows))
    assert (len(failed), taken_rows) == (20, 40 + 20)


def test_running_out_of_memory_is_no_fault_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: ChannelObserver, row: InputRow) -> list[Row]:
        raise MemoryError

    monkeypatch.setattr(ChannelObserver, "take", no_memory)
    with pytest.raises(MemoryError):
        collect(apply_rows(restore(None), restore, [content_row(b"x")]))


# ---- the function of Spark's state ---------------------------------------------------------------------------------


def updated(state: FakeBucket, rows: list[InputRow], expiry_ms: int | None = None) -> dict[str, list[Any]]:
    """One micro-batch of a channel: table → number of rows, and what the driver is to know, by kind."""
    found: dict[str, list[Any]] = {}
    update = stream.stateful(None, SdsParameters(), expiry_ms)
    rows = [row._replace(kafka_offset=offset) for offset, row in enumerate(rows)]
    frames = [frame_of(NO_CHANNEL if row.row_kind == "tick" else KEY, [row]) for row in rows]
    for frame in update((0,), iter(frames), state):
        for blob in frame["results"]:
            results = unpack(blob)
            for name, columns in results.tables.items():
                found.setdefault(name, []).extend(columns[0])
            for result in results.others:
                found.setdefault(type(result).__name__, []).append(result)
    return found


def test_the_query_goes_on_and_the_driver_counts_the_row() -> None:
    state = FakeBucket()
    rows = [
        content_row(b"1", sds_id="1"),
        content_row(b"2", sds_id=BAD),
        content_row(b"3", sds_id="3", lamport_timestamp=NOW + 1),
    ]
    found = updated(state, rows)
    assert found["FailedRows"] == [FailedRows(1)]
    assert (len(found["deliveries"]), len(found["channel_events"])) == (2, 1)
    assert updated(state, [content_row(b"4", sds_id="4", lamport_timestamp=NOW + 2)])["deliveries"]


@pytest.mark.parametrize(
    "column, value",
    [
        ("causal_history", "{"),
        ("sds_ids", 7),
        ("lamport_timestamp", "many"),
        ("repair_request", [{"sender_id": "a"}]),
        ("content_digest", "not base64"),
        ("no_such_column", 1),
    ],
)
def test_a_row_that_cannot_be_read_is_set_aside_and_the_others_are_taken(column: str, value: object) -> None:
    rows = [content_row(str(n).encode(), sds_id=str(n), lamport_timestamp=NOW + n) for n in range(3)]
    frame = frame_of(KEY, [row._replace(kafka_offset=n) for n, row in enumerate(rows)])
    texts = frame["row"].tolist()
    frame["row"] = [texts[0], json.dumps(json.loads(texts[1]) | {column: value}), texts[2]]
    channels = Channels(FakeBucket(), 0, lambda key: Rules(None, SdsParameters(), None))
    ((key, given),) = stream._group_by_channel(iter([frame]))[0].items()
    outputs = list(stream.process_channel(channels, key, given, {}))
    assert [each.sds_id for each in outputs if isinstance(each, Delivery)] == ["0", "2"]
    (event,) = [each for each in outputs if isinstance(each, ChannelEvent)]
    assert (event.event, event.sds_id, event.kafka_offset) == ("row_failed", "1", 1)


def test_state_that_cannot_be_read_is_refused_with_the_remedy() -> None:
    for read in (restore, lambda data: HashSets.from_bytes(data, SegmentationConfig())):
        with pytest.raises(LocalError, match=r"cannot be read.*rebuild"):
            read(b"\xff\xff")


def tick(at_ms: int) -> InputRow:
    return InputRow("tick", "waku.envelopes", 0, 0, at_ms * 1000)


def test_a_silent_channel_rests_and_its_state_goes_with_the_rows_that_it_guards() -> None:
    state = FakeBucket()
    updated(state, [content_row(b"1", sds_id="1")], DAY_MS)
    full = state.channel_bytes()
    assert full
    updated(state, [tick(NOW + 3 * DAY_MS)], DAY_MS)
    assert 0 < state.channel_bytes() < full
    again = updated(state, [content_row(b"1", sds_id="1")._replace(event_us=(NOW + 4 * DAY_MS) * 1000)], DAY_MS)
    assert "deliveries" not in again, "a store brought it back"
    updated(state, [tick(NOW + 7 * DAY_MS)], DAY_MS)
    updated(state, [tick(NOW + GUARDED_MS)], DAY_MS)
    assert state.channel_bytes(), "what it guards is still there"
    updated(state, [tick(NOW + 8 * DAY_MS + GUARDED_MS)], DAY_MS)
    assert not state.channel_bytes()


def test_nothing_is_left_of_a_channel_in_which_nothing_was_delivered() -> None:
    state = FakeBucket()
    sync = content_row(b"1", sds_id="1")._replace(content_digest=None, sds_kind="sync", segment_kind=None)
    updated(state, [sync], DAY_MS)
    assert state.channel_bytes()
    updated(state, [tick(NOW + 3 * DAY_MS)], DAY_MS)
    assert not state.channel_bytes()
    updated(state, [tick(NOW + 4 * DAY_MS)], DAY_MS)
    assert not state.channel_bytes(), "a tick makes no state"


def test_results_are_given_to_spark_before_all_rows_are_taken() -> None:
    state = FakeBucket()
    rows = [content_row(b"x", sds_id=f"{number}")._replace(kafka_offset=number) for number in range(PACKED + 1)]
    frames = stream.stateful(None, SdsParameters(), None)((0,), iter([frame_of(KEY, rows)]), state)
    assert len(next(frames)) == 1
    assert state.head() is None, "the bucket is stored when all rows are taken"
    assert len(list(frames)) >= 1
    assert state.head() is not None


def test_asking_the_processor_for_its_state_imports_nothing_of_the_job() -> None:
    processor = Buckets(stream.stateful(None, SdsParameters(), None))
    program = (
        "import pickle, sys; pickle.loads(bytes.fromhex(sys.stdin.read()));"
        "print(*sorted(name for name in sys.modules if name.startswith('reliable_channel')))"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(processor).hex(), capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == [
        "reliable_channel",
        "reliable_channel.pipeline",
        "reliable_channel.pipeline.ack",
        "reliable_channel.pipeline.ack.buckets",
    ]
