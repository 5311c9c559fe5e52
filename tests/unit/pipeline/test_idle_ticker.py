"""Idle ticks while the machine fails for a while: they come again when it works again."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from reliable_channel.config import load
from reliable_channel.pipeline.ingest import ticks


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
    settings = load("local", pipeline={"clock_interval_ms": 1}, spark={"trigger_interval_ms": 1})
    query = SimpleNamespace(lastProgress=SimpleNamespace(batchId=3), isActive=True, status={"isDataAvailable": False})
    writer = SimpleNamespace(clock=None, lock=threading.Lock())
    ticker = ticks.IdleTicker(settings, writer, query)  # type: ignore[arg-type]
    ticker.start()
    try:
        assert again.wait(120)
    finally:
        ticker.stop()
    assert "No idle tick: The disk is full writing /tables/clock." in caplog.text
