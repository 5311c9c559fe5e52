"""Spark waits ten seconds for Python when a query with state starts; on a busy machine it starts the query again. Of
queries of which one cannot start, none is started."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, cast

import pytest
from pyspark.errors import StreamingQueryException

from reliable_channel.config import load
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.pipeline.runner import run
from reliable_channel.pipeline.runner.queries import ACK, CHAIN, Query
from reliable_channel.runtime.failures import PythonDidNotStart
from tests.support.error_page import pattern_of

SLOW = "[STREAM_FAILED] Query terminated with exception: Python worker failed to connect back. SQLSTATE: XXKST"


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


class Starts:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, *ends: str | None, progress: object = None) -> None:
        self.left = [*ends]
        self._progress = progress
        monkeypatch.setattr(run, "start", self)
        monkeypatch.setattr(run, "check", lambda *_: None)

    def __call__(self, *_: Any, **__: Any) -> Any:
        return FakeQuery(self.left.pop(0), self._progress)


class AtOnce(threading.Event):
    """A signal to stop that is never given, and that nobody waits for."""

    def wait(self, timeout: float | None = None) -> bool:
        return False


def to_end() -> None:
    run.run_to_end(cast(Any, None), load("local"), ACK)


def test_a_query_is_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(monkeypatch, SLOW, SLOW, None)
    to_end()
    assert starts.left == []


def test_it_is_not_started_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(monkeypatch, SLOW, SLOW, SLOW, None)
    with pytest.raises(PythonDidNotStart) as fault:
        to_end()
    assert pattern_of("Python starts slowly").fullmatch(str(fault.value))
    assert len(starts.left) == 1


def test_other_failures_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(monkeypatch, "java.lang.OutOfMemoryError: heap", None)
    with pytest.raises(EnvironmentFault, match="out of memory"):
        to_end()
    assert len(starts.left) == 1


def test_a_running_pipeline_starts_it_again_too(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = Starts(monkeypatch, SLOW, SLOW, "java.lang.OutOfMemoryError: heap", None)
    with pytest.raises(EnvironmentFault, match="out of memory"):
        run.run_continuously(cast(Any, None), load("local"), AtOnce(), queries=[ACK])
    assert len(starts.left) == 1


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
