"""A broker that is away is not told of several times a second."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest
from kafka.errors import Cancelled, KafkaConnectionError

from reliable_channel.runtime.logs import OncePerInterval, quiet_kafka_client, show_logs, tame_kafka


def record(at_s: float, text: str = "Connect attempt to %s failed", level: int = logging.WARNING) -> logging.LogRecord:
    made = logging.LogRecord("kafka.conn", level, __file__, 1, text, ("node 1",), None)
    made.created = at_s
    return made


def test_one_of_a_kind_is_shown_per_interval_and_counts_those_that_were_not() -> None:
    once = OncePerInterval(60)
    shown = [r.getMessage() for r in (record(at) for at in range(0, 130)) if once.filter(r)]
    assert shown == [
        "Connect attempt to node 1 failed",
        "Connect attempt to node 1 failed (and 59 times before)",
        "Connect attempt to node 1 failed (and 59 times before)",
    ]


def test_another_kind_is_not_held_back() -> None:
    once = OncePerInterval(60)
    assert once.filter(record(0))
    assert once.filter(record(1, "Node %s is gone"))
    assert once.filter(record(1, level=logging.ERROR))
    assert not once.filter(record(1))


def test_the_client_is_heard_once_on_standard_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("kafka")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    tame_kafka()
    tame_kafka()
    for _ in range(3):
        logging.getLogger("kafka.conn").warning("gone")
    assert capsys.readouterr().err == "kafka.conn: gone\n"


def test_that_the_client_was_slow_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("kafka"), "handlers", [])
    tame_kafka()
    logging.getLogger("kafka.net.selector").warning("Task %r ran for %.3fs", "a task", 0.2)
    logging.getLogger("kafka.net.selector").error("the loop has ended")
    assert capsys.readouterr().err == "kafka.net.selector: the loop has ended\n"


def test_that_the_client_cancelled_a_request_is_not_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does when it closes a connection on which it has just asked for the topics."""
    monkeypatch.setattr(logging.getLogger("kafka"), "handlers", [])
    tame_kafka()
    for error in (Cancelled(), KafkaConnectionError("reset")):
        logging.getLogger("kafka.cluster").error("Metadata refresh: failed %s", error)
    assert capsys.readouterr().err == "kafka.cluster: Metadata refresh: failed KafkaConnectionError: reset\n"


def test_the_client_is_silent_where_the_caller_says_the_outcome(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.getLogger("kafka"), "handlers", [])
    tame_kafka()
    with quiet_kafka_client():
        logging.getLogger("kafka.net.manager").error("Connection failed")
    logging.getLogger("kafka.net.manager").error("heard again")
    assert capsys.readouterr().err == "kafka.net.manager: heard again\n"


def test_no_text_of_a_stranger_controls_the_terminal_or_looks_like_a_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("reliable_channel")
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", True)
    show_logs(debug=False)
    name = "\x1b]0;owned\x07\u202e\n2026-11-01T12:00:00.000Z ERROR forged"
    try:
        raise ValueError(name)
    except ValueError:
        logger.exception("channel %s stopped", name)
    first, *others = capsys.readouterr().err.splitlines()
    assert first.endswith(r"ERROR channel \x1b]0;owned\x07\u202e\n2026-11-01T12:00:00.000Z ERROR forged stopped")
    assert len(others) > 2
    assert all(line.isprintable() and line.startswith("  ") for line in others)


def test_kafka_can_be_used_where_warnings_are_errors() -> None:
    program = "from reliable_channel.runtime.logs import show_logs; show_logs(debug=False); import kafka"
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
