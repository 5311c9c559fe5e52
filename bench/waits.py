"""Measures the seconds that people wait for: set-up, the demo, and the first answer of commands over its tables.

All are whole processes, started anew. A target is a number of steps of plain Python: 40 s of demo are 100 million steps
where a step takes 0.4 µs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.registry import SIZES, STEP, Result, bench, python_step
from bench.report import make_tables

ROOT = Path(__file__).parents[1]
COMMAND = [sys.executable, "-m", "reliable_channel"]
SET_UP, DEMO, ANSWER = 225, 100, 2.5
"""Targets, million steps: 90 s, 40 s and 1 s where a step takes 0.4 µs."""
RUNS = 5
PATIENCE_S = 1_200


@bench
def waits() -> Iterator[Result]:
    """Measure set-up in a clean clone, which downloads, the demo, and commands over its tables. A smaller run only has
    the commands."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        tables = Path(directory) / "demo" / "tables"
        if SIZES.scale >= 1:
            clone = Path(directory) / "clone"
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True, timeout=PATIENCE_S)
            set_up = ("make", "-C", str(clone), "setup")
            yield from figures("make setup in a clean clone", SET_UP, 1, lambda: run(*set_up))
            yield from figures("make setup, again", ANSWER, RUNS, lambda: run(*set_up))
            yield from figures("demo", DEMO, 1, lambda: run(*COMMAND, "demo", "--dir", str(tables.parent)))
        else:
            make_tables(tables, SIZES.scale_count(100_000))
        over = ("--tables", str(tables))
        question = ("sql", "SELECT count(*) FROM delivery_status")
        yield from figures("report", ANSWER, RUNS, lambda: run(*COMMAND, "report", *over))
        yield from figures("sql", ANSWER, RUNS, lambda: run(*COMMAND, *question, *over))
        yield from figures("dashboard, until its first page", ANSWER, RUNS, lambda: read_first_page(*over))


def figures(what: str, target: float, runs: int, wait: Callable[[], float]) -> Iterator[Result]:
    """The least seconds of ``runs`` calls of ``wait``, and as steps of plain Python."""
    repetitions = range(SIZES.count_repetitions(runs))
    seconds, steps = min((took, took / python_step() / 1e6) for took in (wait() for _ in repetitions))
    yield Result(what, seconds, "s")
    yield Result(f"{what} / {STEP}", steps, "million steps", target, True, STEP)


def run(*command: str) -> float:
    """Run a command to its end; returns its seconds."""
    started = time.perf_counter()
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=PATIENCE_S)
    return time.perf_counter() - started


def read_first_page(*tables: str) -> float:
    """Start the dashboard and get its first page, then end it; returns the seconds until the page was read."""
    started = time.perf_counter()
    command = [*COMMAND, "dashboard", "--port", "0", *tables]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    ) as it:
        try:
            assert it.stdout is not None
            address = next(found[0] for line in it.stdout if (found := re.search(r"http://[\w.:]+", line)))
            with urllib.request.urlopen(address, timeout=PATIENCE_S) as page:  # noqa: S310 - our own address
                assert b"</html>" in page.read()
            return time.perf_counter() - started
        finally:
            it.terminate()
