"""A query is started again that Python or Kafka left waiting for too long (Spark waits ten seconds for Python when a
query with state starts, and 20 s for a broker), or a clock that was set back. Of queries of which one cannot start,
none is started, and a stop waits for micro-batches only."""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from reliable_channel.config import Settings, load
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.pipeline.ingest.stream import IngestWriter
from reliable_channel.pipeline.ingest.ticks import IdleTicker, SteadyClock
from reliable_channel.pipeline.runner import run
from reliable_channel.pipeline.runner.queries import ACK, CHAIN, INGEST, Query
from reliable_channel.runtime.failures import PassingFault
from tests.support.error_page import pattern_of

SLOW = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"
PASSING = [
    (pattern_of("Python starts slowly"), SLOW),
    (
        pattern_of("Columns changed under a stream"),
        "[DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS] Detected schema change in version 4: … you may need to change the"
        " existing\n'startingVersion' or 'startingTimestamp' option to start from a version newer than",
    ),
    *(
        (pattern_of("Kafka stops answering while it is read"), f"Lost task 1.0 in stage 3.0: {text}")
        for text in (
            "org.apache.kafka.common.errors.TimeoutException: Timeout of 20000ms expired before the position for"
            " partition waku.envelopes-1 could be determined",
            "java.util.concurrent.TimeoutException: Cannot fetch record for offset 1057 in 120000 milliseconds",
        )
    ),
]
"""What docs/errors.md says, and what Spark 4.2 says."""


class Failed(StreamingQueryException):
    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


@dataclass
class FakeQuery:
    """A streaming query that ends at once."""

    fails: str | None
    lastProgress: object = None  # noqa: N815 - Spark's name
    name: str = "ack"
    isActive: bool = False  # noqa: N815 - Spark's name

    def awaitTermination(self, timeout: int) -> bool:  # noqa: N802 - Spark's name
        if self.fails:
            raise Failed(self.fails)
        return True

    def stop(self) -> None:
        pass

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": False}


@dataclass
class Busy(FakeQuery):
    """A query that is in a trigger until it is stopped."""

    isActive: bool = True  # noqa: N815 - Spark's name
    message: str = "Processing new data"
    stopped: bool = False

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": True, "message": self.message}

    def stop(self) -> None:
        self.stopped = True


class Starts:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: str | None, progress: object = None) -> None:
        self.left = [*ends]
        self._progress = progress
        monkeypatch.setattr(run, "start", self)
        monkeypatch.setattr(run, "check", lambda *_: None)

    def __call__(self, _spark: object, _settings: object, query: Query, **_: Any) -> Any:
        return FakeQuery(self.left.pop(0), self._progress, query.name)


class Waits(FakeQuery):
    """A query that waits for its next trigger until it is stopped."""

    def stop(self) -> None:
        self.isActive = False


class AtOnce(threading.Event):
    """A signal to stop that is never given, and that nobody waits for."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


def to_end() -> None:
    run.run_to_end(cast(Any, None), load("local"), ACK)


@pytest.mark.parametrize(("sentence", "text"), PASSING, ids=["Python", "a column", "a broker", "records"])
def test_a_query_is_started_again_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, sentence: re.Pattern[str], text: str
) -> None:
    starts = Starts(monkeypatch, text, text, None)
    to_end()
    assert starts.left == []
    starts = Starts(monkeypatch, text, text, text, None)
    with pytest.raises(PassingFault) as fault:
        to_end()
    assert sentence.fullmatch(str(fault.value))
    assert len(starts.left) == 1


def test_other_failures_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(monkeypatch, "java.lang.OutOfMemoryError: heap", None)
    with pytest.raises(EnvironmentFault, match="out of memory"):
        to_end()
    assert len(starts.left) == 1


def test_a_running_pipeline_starts_it_again_too_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starts = Starts(monkeypatch, SLOW, SLOW, "java.lang.OutOfMemoryError: heap", None)
    with pytest.raises(EnvironmentFault, match="out of memory"):
        run.run_continuously(cast(Any, None), load("local"), AtOnce(), queries=[ACK])
    assert len(starts.left) == 1
    assert [message.endswith(" It is started again.") for message in caplog.messages] == [True] * 2


def test_ingest_that_is_started_again_has_one_ticker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Starts(monkeypatch, SLOW, SLOW, "java.lang.OutOfMemoryError: heap")
    with pytest.raises(EnvironmentFault, match="out of memory"):
        run.run_continuously(
            cast(Any, None), load("local", paths={"run_dir": str(tmp_path)}), AtOnce(), queries=[INGEST]
        )
    assert [thread for thread in threading.enumerate() if isinstance(thread, IdleTicker)] == []


def test_ingest_that_is_started_again_takes_no_wrong_clock_for_right(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A clock that is set forward also breaks requests to Kafka off, which starts ingest again."""
    clocks: list[SteadyClock] = []

    class Ticker(IdleTicker):
        def __init__(self, settings: Settings, writer: IngestWriter, query: StreamingQuery, clock: SteadyClock) -> None:
            super().__init__(settings, writer, query, clock)
            clocks.append(clock)

    monkeypatch.setattr("reliable_channel.pipeline.ingest.ticks.IdleTicker", Ticker)
    Starts(monkeypatch, SLOW, SLOW, "java.lang.OutOfMemoryError: heap")
    settings = load("local", paths={"run_dir": str(tmp_path)})
    with pytest.raises(EnvironmentFault, match="out of memory"):
        run.run_continuously(cast(Any, None), settings, AtOnce(), queries=[INGEST])
    assert len(clocks) == 3
    assert len({id(clock) for clock in clocks}) == 1


def test_slow_starts_that_micro_batches_part_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(monkeypatch, *[SLOW] * 9, "java.lang.OutOfMemoryError: heap", None, progress={"batchId": 3})
    with pytest.raises(EnvironmentFault, match="out of memory"):
        run.run_continuously(cast(Any, None), load("local"), AtOnce(), queries=[ACK])
    assert len(starts.left) == 1


@pytest.mark.parametrize("continuous", [True, False], ids=["continuous", "once"])
def test_of_queries_of_which_one_cannot_start_none_is_started(
    monkeypatch: pytest.MonkeyPatch, continuous: bool
) -> None:
    starts = Starts(monkeypatch, None, None, None)

    def refuse(_spark: object, _settings: object, query: Query) -> None:
        if query.name == "ack":
            raise ConfigurationError("The checkpoint of ack was made with other settings.")

    monkeypatch.setattr(run, "check", refuse)
    with pytest.raises(ConfigurationError):
        if continuous:
            run.run_continuously(cast(Any, None), load("local"), AtOnce())
        else:
            run.run_chain(cast(Any, None), load("local"))
    assert len(starts.left) == len(CHAIN)


def test_a_run_that_is_stopped_waits_for_a_micro_batch_but_not_for_a_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    asks, writes = Busy(None, message="Getting offsets from KafkaV2[Subscribe[waku.envelopes]]"), Busy(None)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        assert asks.stopped
        waits.append(seconds)
        writes.isActive = False

    monkeypatch.setattr("time.sleep", sleep)
    run.stop_all(cast(Any, [asks, writes]))
    assert len(waits) == 1
    assert writes.stopped


@pytest.mark.parametrize(("steps", "starts"), [((0, 86_400), 1), ((0, 1), 1), ((86_400, 0), 2), ((0, -60), 2)])
def test_the_reader_of_kafka_is_started_again_when_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, steps: tuple[float, ...], starts: int
) -> None:
    """Spark waits for the next trigger by the wall clock: for a day, if that was set back by a day."""
    started: list[tuple[str, Waits]] = []
    ahead, real = 0.0, time.time

    class Steps(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal ahead
            if left:
                ahead = left.pop(0)
                return False
            return True

    def begin(_spark: object, _settings: object, query: Query, **_: object) -> Waits:
        started.append((query.name, Waits(None, name=query.name, isActive=True)))
        return started[-1][1]

    left = [*steps, steps[-1]]
    monkeypatch.setattr("time.time", lambda: real() + ahead)
    monkeypatch.setattr(run, "start", begin)
    monkeypatch.setattr(run, "check", lambda *_: None)
    run.run_continuously(cast(Any, None), load("local", paths={"run_dir": str(tmp_path)}), Steps(), queries=CHAIN)
    names = [name for name, _ in started]
    assert names == ["ingest", "reassembly", "ack", *["ingest"] * (starts - 1)]
    assert not any(query.isActive for _, query in started)


def test_a_reader_of_kafka_that_fails_whenever_the_clock_is_set_back_is_not_started_for_ever(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may fail in the half second in which the step is noticed."""
    starts, leads = Starts(monkeypatch, *[SLOW] * 9), iter(range(0, -600, -60))
    monkeypatch.setattr(run, "_get_wall_clock_lead", lambda: next(leads))
    settings = load("local", paths={"run_dir": str(tmp_path)})
    with pytest.raises(PassingFault):
        run.run_continuously(cast(Any, None), settings, AtOnce(), queries=[INGEST])
    assert len(starts.left) == 6
