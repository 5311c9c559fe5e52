"""Compares the jobs with the obvious alternative: js-waku's ``MessageChannel`` as a consumer of the same topic.

Channels with logs get new messages: the three jobs write them to Delta tables in one round, a Node.js process
(``bench/js/consumer.mjs``) to SQLite. The jobs have two cores; JavaScript uses one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.jobs.children import child
from bench.jobs.stages import prepare
from bench.registry import SIZES, Result, bench

JS = Path(__file__).parent / "js"
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Cell:
    """``channels`` with logs of ``log`` messages each get ``measured`` more in all."""

    channels: int
    log: int
    measured: int

    @property
    def label(self) -> str:
        return f"log of {self.log}" if self.channels == 1 else f"{self.channels} channels, logs of {self.log}"

    @property
    def topic(self) -> str:
        return f"bench.{self.channels}-{self.log}"


CELLS = (
    Cell(1, 1_000, 2_000),
    Cell(1, 5_000, 2_000),
    Cell(1, 10_000, 2_000),
    Cell(16, 1_000, 16_000),
    Cell(500, 100, 20_000),
)
WARM_UP = (Cell(1, 4_000, 2_000), Cell(1, 4_100, 2_000), Cell(16, 300, 4_000))
"""Conversations that only warm up the JVM."""


@bench
def js_waku() -> Iterator[Result]:
    """Measure records/s and CPU time of both, for logs of three lengths and for more channels. Skipped without
    Node.js."""
    from reliable_channel.runtime.broker import running_broker
    from reliable_channel.runtime.topics import ensure_topics

    if shutil.which("npm") is None:
        sys.stderr.write("  npm was not found (Debian: nodejs npm): js-waku is left out.\n")
        return
    install(JS)
    warm_up = WARM_UP if SIZES.scale >= 0.1 else ()
    cells = [scale(cell) for cell in (*warm_up, *CELLS)]
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        settings = prepare(directory)
        with running_broker(settings) as there:
            for cell in cells:
                topics = there.kafka.topics.model_copy(update={"envelopes": cell.topic, "partitions": 1})
                ensure_topics(there.kafka.model_copy(update={"topics": topics}))
            servers = there.kafka.servers
            cases = [{"topic": cell.topic, **asdict(cell)} for cell in cells]
            with child(
                "bench.jobs.beside", {"servers": servers, "run_dir": directory, "cores": 2, "cases": cases}
            ) as process:
                answers = {answer["topic"]: answer for answer in process.answers()}
                process.finish(PATIENCE_S)
            for cell in cells[len(warm_up) :]:
                ours = answers[cell.topic]
                theirs = consume(servers, cell, Path(directory) / f"{cell.topic}.sqlite")
                if {ours["rows"], theirs["rows"]} != {cell.measured}:
                    raise AssertionError(f"{cell.measured} messages were sent, delivered are {ours} and {theirs}.")
                yield from compare(cell.label, ours, theirs)


def scale(cell: Cell) -> Cell:
    """The cell at the scale of this run."""
    channels = cell.channels if cell.channels == 1 else SIZES.scale_count(cell.channels, 2)
    measured = SIZES.scale_count(cell.measured, 200) // channels * channels
    return Cell(channels, SIZES.scale_count(cell.log, 1), measured)


def install(directory: Path) -> None:
    """Install the Node.js packages of the lock file, once."""
    lock, mark = directory / "package-lock.json", directory / "node_modules" / ".installed"
    if not mark.exists() or mark.read_bytes() != lock.read_bytes():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=directory, check=True)
        shutil.copyfile(lock, mark)


def consume(servers: str, cell: Cell, database: Path) -> dict[str, Any]:
    """Run the Node.js process and return its measurements."""
    counts = (cell.channels * cell.log, cell.measured)
    command = ["node", "consumer.mjs", servers, cell.topic, *map(str, counts), str(database)]
    done = subprocess.run(command, cwd=JS, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode != 0:
        raise RuntimeError(f"node ended with {done.returncode}: {done.stderr.strip()[-1_000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare(label: str, ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Result]:
    """The figures of one cell."""
    for name, one in (("all three jobs", ours), ("js-waku into SQLite", theirs)):
        yield Result(f"{label}: {name}", one["records"] / one["seconds"], "records/s")
        yield Result(f"{label}: {name}, CPU", one["cpu_s"] * 1_000 / one["records"], "ms a record")
    for unit, what in (("seconds", ""), ("cpu_s", ", CPU")):
        rate = theirs[unit] * ours["records"] / (ours[unit] * theirs["records"])
        yield Result(f"{label}: jobs / js-waku{what}", rate, "ratio", 1.0, against="js-waku into SQLite")
