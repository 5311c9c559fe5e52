"""Measures reading the log of a node: a million lines, half of which name a message, into an empty table and again.

CPU time, since the machine is shared; the target of a minute on two cores is a wall time, which is only reported."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.registry import SIZES, STEP, Result, bench, python_step
from reliable_channel.config import PathSettings
from reliable_channel.evidence.log_files import read_logs
from tests.support.node_log_lines import nim_json, nim_text, zap_console

LINES = 1_000_000
TARGET = 60.0
"""Steps of plain Python for each line."""
_START_MS = 1_767_225_600_000
_OTHER = (
    'DBG 2026-01-01 00:00:00.000+00:00 Received store query request   topics="waku store" peerId=16U*wJXtuH id=0x1\n'
)


@bench
def node_logs() -> Iterator[Result]:
    """Measure each format, each message in four lines, and a second reading that adds nothing."""
    lines = SIZES.scale_count(LINES, 1_000)
    for form in (nim_text, nim_json, zap_console):
        with tempfile.TemporaryDirectory() as directory:
            log = Path(directory) / "node.log"
            _write(log, lines, form)
            paths, step = PathSettings(run_dir=directory), python_step()
            for what in ("new", "known"):
                began, cpu = time.perf_counter(), time.process_time()
                counts = read_logs(paths, [log], "node")
                took, cpu = time.perf_counter() - began, time.process_time() - cpu
                assert counts.new == (lines // 2 if what == "new" else 0)
                name = f"{form.__name__}, {lines} lines, sightings {what}"
                yield Result(name, cpu / step / lines, "steps a line", TARGET, True, STEP)
                yield Result(f"{name}: wall", took, "s")


def _write(log: Path, lines: int, form: Callable[[int, str, bytes, str, str], str]) -> None:
    with log.open("w", encoding="utf-8") as file:
        for number in range(lines // 2):
            if number % 4 == 0:
                digest = os.urandom(32)
            file.write(
                form(_START_MS + number, "received", digest, "16U*own111", f"16U*peer{number % 4}") + "\n" + _OTHER
            )
