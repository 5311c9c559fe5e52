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
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.pipeline.ingest import ticks
from reliable_channel.pipeline.ingest.recreated_topic import has_unread
from reliable_channel.transport.kafka_consumer import DescribedTopic


class Answers:
    """What Kafka says one time after the other: whether it has more, or an error."""

    def __init__(self, *answers: bool | Exception) -> None:
        self._left = iter(answers)

    def __call__(self, _: Settings) -> bool:
        answer = next(self._left)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_tick_does_not_overtake_records_that_spark_has_not_looked_for_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause of the machine, a suspended one for instance, they would count as later than they are."""
    over = ConfigurationError("The topic t was deleted and recreated, or …: …", "…")
    ticked: list[int] = []
    monkeypatch.setattr(ticks, "has_unread", Answers(False, True, True, False, over))
    monkeypatch.setattr(ticks, "advance", lambda *_: ticked.append(1))
    monkeypatch.setattr(ticks.IdleIntervals, "is_due", lambda *_: True)
    ticker = make_ticker()
    ticker.start()
    ticker.join(120)
    assert (len(ticked), ticker.refused) == (2, over)


@pytest.mark.parametrize(
    ("ends", "unread"),
    [
        ({0: 12, 1: 7}, False),
        ({0: 13, 1: 7}, True),
        ({0: 12, 1: 7, 2: 0}, False),
        ({0: 12, 1: 7, 2: 1}, True),
        ({}, False),
    ],
)
def test_what_is_unread_is_beyond_the_offsets_of_the_last_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: dict[int, int], unread: bool
) -> None:
    """Partitions that were added to the topic meanwhile as well."""
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
    assert has_unread(settings) is unread


def test_a_topic_that_was_recreated_ends_the_ticks_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = ConfigurationError("The topic t was deleted and recreated, or …: …", "…")
    ticked: list[int] = []
    monkeypatch.setattr(ticks, "has_unread", Answers(False, ValueError("of the client"), False, refused))
    monkeypatch.setattr(ticks, "advance", lambda *_: ticked.append(1))
    monkeypatch.setattr(ticks.IdleIntervals, "is_due", lambda *_: True)
    ticker = make_ticker()
    ticker.start()
    ticker.join(120)
    assert (len(ticked), ticker.refused) == (2, refused)


def test_a_topic_that_was_recreated_is_named_also_while_records_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new one may soon be longer than the old one was, and is then never idle."""
    refused = ConfigurationError("The topic t was deleted and recreated, or …: …", "…")
    monkeypatch.setattr(ticks, "has_unread", Answers(False, refused))
    monkeypatch.setattr(ticks, "advance", lambda *_: pytest.fail("it is not idle"))
    ticker = make_ticker(is_data_available=True)
    ticker.start()
    ticker.join(120)
    assert ticker.refused is refused


def make_ticker(is_data_available: bool = False) -> ticks.IdleTicker:
    settings = load("local", pipeline={"clock_interval_ms": 1}, spark={"trigger_interval_ms": 1})
    status = {"isDataAvailable": is_data_available}
    query = SimpleNamespace(lastProgress=SimpleNamespace(batchId=3), isActive=True, status=status)
    writer = SimpleNamespace(clock=None, lock=threading.Lock())
    return ticks.IdleTicker(settings, writer, query)  # type: ignore[arg-type]


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
    monkeypatch.setattr(ticks, "has_unread", lambda _: False)
    ticker = make_ticker()
    ticker.start()
    try:
        assert again.wait(120)
    finally:
        ticker.stop()
    assert "No idle tick: The disk is full writing /tables/clock." in caplog.text


def test_there_is_no_tick_while_kafka_does_not_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Records may wait there. Channels would seem silent, and what is in those records would be called missing."""
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
    assert "No idle tick: Kafka at 127.0.0.1:9092 cannot be used (KafkaTimeoutError). Start it with" in caplog.text
