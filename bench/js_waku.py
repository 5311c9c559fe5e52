"""Compares the jobs with the obvious alternative: js-waku's ``MessageChannel`` as a consumer of the same topic.

One channel with a log gets new messages: the three jobs write them to Delta tables in one round, a Node.js process
(``bench/js/consumer.mjs``) to SQLite. The jobs have two cores; JavaScript uses one.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.jobs.children import child
from bench.jobs.stages import prepare
from bench.registry import SIZES, Result, bench

JS = Path(__file__).parent / "js"
LOGS = (1_000, 5_000, 10_000)
WARM_UP = (4_000, 4_001, 4_002)
"""Log lengths of conversations that only warm up the JVM."""
MEASURED = 2_000
PATIENCE_S = 600.0


@bench
def js_waku() -> Iterator[Result]:
    """Measure records/s and CPU time of both, for logs of three lengths. Skipped without Node.js."""
    from reliable_channel.runtime.broker import running_broker
    from reliable_channel.runtime.topics import ensure_topics

    if shutil.which("npm") is None:
        sys.stderr.write("  npm was not found (Debian: nodejs npm): js-waku is left out.\n")
        return
    install(JS)
    measured = SIZES.scale_count(MEASURED, 200)
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        settings = prepare(place)
        with running_broker(settings) as there:
            cases: list[dict[str, Any]] = [{"topic": f"bench.log-{log}", "log": log} for log in (*WARM_UP, *LOGS)]
            for case in cases:
                topics = there.kafka.topics.model_copy(update={"envelopes": case["topic"], "partitions": 1})
                ensure_topics(there.kafka.model_copy(update={"topics": topics}))
            servers = there.kafka.servers
            spec = {"servers": servers, "run_dir": place, "cores": 2, "records": measured, "cases": cases}
            with child("bench.jobs.beside", spec) as process:
                answers = {answer["topic"]: answer for answer in process.answers()}
                process.finish(PATIENCE_S)
            for case in cases[len(WARM_UP) :]:
                topic, log = case["topic"], case["log"]
                ours = answers[topic]
                theirs = consume(servers, topic, log, measured, Path(place) / f"{topic}.sqlite")
                if {ours["rows"], theirs["rows"]} != {measured}:
                    raise AssertionError(f"{measured} messages were sent, delivered are {ours} and {theirs}.")
                yield from compare(log, ours, theirs)


def install(place: Path) -> None:
    """Install the Node.js packages of the lock file, once."""
    lock, mark = place / "package-lock.json", place / "node_modules" / ".installed"
    if not mark.exists() or mark.read_bytes() != lock.read_bytes():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=place, check=True)
        shutil.copyfile(lock, mark)


def consume(servers: str, topic: str, log: int, measured: int, database: Path) -> dict[str, Any]:
    """Run the Node.js process and return its measurements."""
    command = ["node", "consumer.mjs", servers, topic, str(log), str(measured), str(database)]
    done = subprocess.run(command, cwd=JS, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode != 0:
        raise RuntimeError(f"node ended with {done.returncode}: {done.stderr.strip()[-1_000:]}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare(log: int, ours: dict[str, Any], theirs: dict[str, Any]) -> Iterator[Result]:
    """The figures for a log of this length."""
    for name, one in (("all three jobs", ours), ("js-waku into SQLite", theirs)):
        yield Result(f"log of {log}: {name}", one["records"] / one["seconds"], "records/s")
        yield Result(f"log of {log}: {name}, CPU", one["cpu_s"] * 1_000 / one["records"], "ms a record")
    for unit, what in (("seconds", ""), ("cpu_s", ", CPU")):
        rate = theirs[unit] * ours["records"] / (ours[unit] * theirs["records"])
        yield Result(f"log of {log}: jobs / js-waku{what}", rate, "ratio", 1.0, against="js-waku into SQLite")
