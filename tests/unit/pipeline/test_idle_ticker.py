"""Idle ticks while the machine fails for a while: they come again when it works again."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from reliable_channel.config import Settings, load
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.lake.tables import TopicPartition
from reliable_channel.pipeline.ingest import ticks
from reliable_channel.pipeline.ingest.recreated_topic import find_unread
from reliable_channel.transport.kafka_consumer import DescribedTopic

NONE, SOME = frozenset[TopicPartition](), frozenset({("waku.envelopes", 0)})


class Answers:
    """What Kafka says one time after the other: which partitions have more, or an error."""

    def __init__(self, *answers: frozenset[TopicPartition] | Exception) -> None:
        self._left = iter(answers)

    def __call__(self, _: Settings) -> frozenset[TopicPartition]:
        answer = next(self._left)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_tick_does_not_overtake_records_that_spark_has_not_looked_for_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause of the machine, a suspended one for instance, they would count as later than they are."""
    over = ConfigurationError("The topic t was deleted and recreated, or …: …", "…")
    ticked: list[int] = []
    monkeypatch.setattr(ticks, "find_unread", Answers(NONE, SOME, SOME, NONE, over))
    monkeypatch.setattr(ticks, "advance", lambda *_: ticked.append(1))
    monkeypatch.setattr(ticks.IdleIntervals, "is_due", lambda *_: True)
    ticker = make_ticker()
    ticker.start()
    ticker.join(120)
    assert (len(ticked), ticker.refused) == (2, over)


@pytest.mark.parametrize(
    ("ends", "unread"),
    [
        ({0: 12, 1: 7}, set()),
        ({0: 13, 1: 7}, {0}),
        ({0: 12, 1: 7, 2: 0}, set()),
        ({0: 12, 1: 7, 2: 1}, {2}),
        ({}, set()),
    ],
)
def test_what_is_unread_is_beyond_the_offsets_of_the_last_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: dict[int, int], unread: set[int]
) -> None:
    """Partitions that were added to the topic meanwhile as well."""
    assert find_unread(stop_ingest(tmp_path, monkeypatch, ends)) == {("waku.envelopes", number) for number in unread}


def test_a_topic_that_is_restored_from_an_older_copy_while_ingest_runs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark waits until it is as long as it was, and skips the records up to there."""
    settings = stop_ingest(tmp_path, monkeypatch, {0: 12, 1: 6})
    with pytest.raises(ConfigurationError, match="its partition 1 ends at 6, and was read to 7"):
        find_unread(settings)


def stop_ingest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: dict[int, int]) -> Settings:
    """Settings with a checkpoint of ingest, and a topic that has these ends."""
    settings = load("local", paths={"run_dir": str(tmp_path)})
    root = Path(settings.paths.checkpoint("ingest"))
    for part, text in (
        ("offsets", "v1\n{}\n" + json.dumps({"waku.envelopes": {"0": 12, "1": 7}})),
        ("commits", "v1\n{}"),
    ):
        (root / part).mkdir(parents=True)
        (root / part / "0").write_text(text)
    described = DescribedTopic("id", frozenset(ends), ends)
    monkeypatch.setattr("reliable_channel.transport.kafka_consumer.describe_topic", lambda *_, **__: described)
    return settings


def test_a_topic_that_was_recreated_ends_the_ticks_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ConfigurationError("The topic t was deleted and recreated, or …: …", "…")
    ticked: list[int] = []
    monkeypatch.setattr(ticks, "find_unread", Answers(NONE, ValueError("of the client"), NONE, refused))
    monkeypatch.setattr(ticks, "advance", lambda *_: ticked.append(1))
    monkeypatch.setattr(ticks.IdleIntervals, "is_due", lambda *_: True)
    ticker = make_ticker()
    ticker.start()
    ticker.join(120)
    assert (len(ticked), ticker.refused) == (2, refused)


def test_a_topic_that_was_recreated_is_named_also_while_records_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one may soon be longer than the old one was, and is then never idle."""
    refused = ConfigurationError("The topic t was deleted and recreated, or …: …", "…")
    monkeypatch.setattr(ticks, "find_unread", Answers(NONE, refused))
    monkeypatch.setattr(ticks, "advance", lambda *_: pytest.fail("it is not idle"))
    ticker = make_ticker(is_data_available=True)
    ticker.start()
    ticker.join(120)
    assert ticker.refused is refused


def make_ticker(is_data_available: bool = False) -> ticks.IdleTicker:
    settings = load("local", pipeline={"clock_interval_ms": 1}, spark={"trigger_interval_ms": 1})
    status = {"isDataAvailable": is_data_available}
    query = SimpleNamespace(lastProgress=SimpleNamespace(batchId=3), isActive=True, status=status)
    writer = SimpleNamespace(clock=SimpleNamespace(waiting=NONE), lock=threading.Lock())
    return ticks.IdleTicker(settings, writer, query, ticks.SteadyClock())  # type: ignore[arg-type]


def test_a_tick_that_fails_is_a_warning_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    again, calls = threading.Event(), []

    def advance(*_: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError(28, "No space left on device", "/tables/clock")
        again.set()

    monkeypatch.setattr(ticks, "advance", advance)
    monkeypatch.setattr(ticks.IdleIntervals, "is_due", lambda *_: True)
    monkeypatch.setattr(ticks, "find_unread", lambda _: NONE)
    ticker = make_ticker()
    ticker.start()
    try:
        assert again.wait(120)
    finally:
        ticker.stop()
    assert "The recorded clock stands still: The disk is full writing /tables/clock." in caplog.text


def test_there_is_no_tick_while_kafka_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Records may wait there. Channels would seem silent, and what is in those records would be called missing. It is
    said once, not in every interval."""
    asked, ticked, calls = threading.Event(), list[int](), list[int]()

    def describe(*_: Any, **__: Any) -> None:
        calls.append(1)
        if len(calls) == 3:  # each of the two before has had its chance to tick
            asked.set()
        raise KafkaTimeoutError

    monkeypatch.setattr("reliable_channel.transport.kafka_consumer.describe_topic", describe)
    monkeypatch.setattr(ticks, "advance", lambda *_: ticked.append(1))
    monkeypatch.setattr(ticks.IdleIntervals, "is_due", lambda *_: True)
    ticker = make_ticker()
    ticker.start()
    try:
        assert asked.wait(120)
        assert ticked == []
    finally:
        ticker.stop()
    (said,) = caplog.messages
    assert said.startswith(
        "The recorded clock stands still: Kafka at 127.0.0.1:9092 cannot be used (KafkaTimeoutError). "
    )


def test_partitions_with_more_records_are_noted_for_micro_batches_after_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A replay advances what its first run did, and knows of no partition that waits."""
    over = ConfigurationError("The topic t was deleted and recreated, or …: …", "…")
    for progress, waiting in ((None, NONE), (SimpleNamespace(batchId=3), SOME)):
        monkeypatch.setattr(ticks, "find_unread", Answers(SOME, over))
        ticker = make_ticker()
        ticker._query.lastProgress = progress  # type: ignore[misc]
        ticker.start()
        ticker.join(120)
        assert ticker._clock.waiting == waiting


def test_partitions_whose_brokers_are_down_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark then reads nothing of the whole topic, and waits. It was "UnknownBrokerIdError. Check … security."."""
    led = [{"partition_index": number, "leader_id": leader} for number, leader in enumerate((1, -1, 2, -1))]
    admin = SimpleNamespace(describe_topics=lambda _: [{"partitions": led}], close=lambda: None)
    monkeypatch.setattr("reliable_channel.transport.kafka_consumer.KafkaAdminClient", lambda **_: admin)
    with pytest.raises(EnvironmentFault, match="has no leader for its partitions 1, 3"):
        find_unread(load("local", paths={"run_dir": str(tmp_path)}))
