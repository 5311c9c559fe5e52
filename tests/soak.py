"""``make soak``: mixed traffic through a real broker and all jobs for as long as is asked, with maintenance, retention,
verdicts and alerts beside it. In the end the tables are compared with the truth, and memory and files with what they
were after the first tenth.

One simulated conversation is played after another, each with channels of its own and some hours later in virtual time,
so that days pass and rows reach their retention. ``DIR/samples.jsonl`` has a line for every look at memory and tables,
``DIR/result.json`` the summary. Exit code 1: a difference from the truth, or something that grew.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from bench.jobs.usage import process_tree
from reliable_channel.analysis.report.check import check
from reliable_channel.analysis.report.tables import read_observed
from reliable_channel.cli.commands.demo import HOUR_MS, demo_settings, prepare
from reliable_channel.cli.commands.run import judged
from reliable_channel.config import Settings, load
from reliable_channel.lake.read import open_tables
from reliable_channel.pipeline.clock import recorded
from reliable_channel.pipeline.maintenance import maintain
from reliable_channel.pipeline.runner.run import close, run_chain, run_continuously
from reliable_channel.runtime.broker import running_broker
from reliable_channel.runtime.logs import tame_kafka
from reliable_channel.runtime.spark import spark_session
from reliable_channel.runtime.topics import ensure_evidence_topic
from reliable_channel.simulation.evidence import sender_events
from reliable_channel.simulation.presets import demo_scenario, small_scenario
from reliable_channel.simulation.scenario import Scenario
from reliable_channel.simulation.to_kafka import write_events, write_records
from reliable_channel.simulation.truth import Truth
from reliable_channel.simulation.world import simulate

DAYS = 12
"""Virtual days that a soak spans: more than the shortest retention of a table (7), less than that of any table which is
compared with the truth (30)."""
RECORDS = 420
"""Of a conversation, about."""
SAMPLE_S = 5.0
MEMORY_GROWTH, FILES_GROWTH = 1.3, 2.0
"""How many times as much the last third of a run may have as the time after its first tenth."""
LONG_S = 600.0
"""From so long on growth counts: in the first minutes Java compiles and caches fill."""
NEVER_MS = 10**10


class Traffic(threading.Thread):
    """Plays conversations one after another, at ``rate`` records/s, until ``stop``; keeps the truth about them."""

    def __init__(self, settings: Settings, rate: float, seconds: float, stop: threading.Event) -> None:
        super().__init__(name="traffic", daemon=True)
        self._settings, self._rate, self._stop_playing = settings, rate, stop
        self._spacing_ms = max(HOUR_MS, int(DAYS * 24 * HOUR_MS / max(1.0, rate * seconds / RECORDS)))
        self.now_ms = time.time_ns() // 1_000_000 - DAYS * 24 * HOUR_MS
        """The virtual time that the traffic has reached."""
        self.records = 0
        self.conversations = 0
        self.fault: BaseException | None = None
        self._truths: list[Truth] = []

    def run(self) -> None:
        """Play until told to stop; a conversation is played to its end."""
        try:
            while not self._stop_playing.is_set():
                self._play(conversation(self.conversations, self.now_ms))
                self.conversations += 1
                self.now_ms += self._spacing_ms
        except BaseException as fault:  # the main thread tells it
            self.fault = fault

    def _play(self, scenario: Scenario) -> None:
        kafka, world = self._settings.kafka, simulate(scenario)
        before = self.records

        def count(written: int) -> None:
            self.records = before + written

        coordinates = write_records(world.records, kafka.topics.envelopes, kafka.client_options(), self._rate, count)
        write_events(sender_events(world.journals), self._settings.bridge.evidence_topic, kafka.client_options())
        self.records = before + len(world.records)
        self._truths.append(world.truth.located(coordinates))

    def truth(self) -> Truth:
        """The truth about all conversations."""
        fields = [field.name for field in dataclasses.fields(Truth)]
        return Truth(**{name: [row for one in self._truths for row in getattr(one, name)] for name in fields})


def conversation(number: int, start_ms: int) -> Scenario:
    """Every fourth is the demo's, with five channels and large segments; the others are small."""
    scenario = demo_scenario(number) if number % 4 == 3 else small_scenario(number)
    channels = tuple(replace(plan, channel_id=f"{plan.channel_id}-{number}") for plan in scenario.channels)
    return replace(scenario, channels=channels, start_ms=start_ms, stores=(), vantages=(("bridge", 1.0),))


def memory_mb() -> dict[str, float]:
    """Proportional set size (MB) of the driver, its JVM, the Python workers and the broker."""
    found: dict[str, float] = defaultdict(float)
    for pid in process_tree(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        who = "driver" if pid == os.getpid() else "workers"
        if b"java" in command.split(b"\0")[0]:
            who = "broker" if b"kafka.Kafka" in command else "jvm"
        found[who] += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
    return {who: round(mb, 1) for who, mb in sorted(found.items())}


def table_sizes(settings: Settings) -> dict[str, dict[str, int]]:
    """Per table: the files of its newest version and their bytes, and the files of its log."""
    found = {}
    for name, table in open_tables(settings.paths).items():
        actions = pa.table(table.get_add_actions(flatten=True))
        log = os.listdir(Path(settings.paths.table(name)) / "_delta_log")  # noqa: PTH208  names are enough
        sizes = actions["size_bytes"].to_pylist()
        found[name] = {"files": len(sizes), "bytes": sum(sizes), "log_files": len(log)}
    return found


def state_bytes(settings: Settings) -> int:
    """Bytes of all checkpoints."""
    total = 0
    for path in Path(settings.paths.checkpoint_dir).rglob("*"):
        with suppress(FileNotFoundError):  # Spark removes what is old meanwhile
            total += path.stat().st_size
    return total


def every(
    seconds: float, stop: threading.Event, act: Callable[[], object], faults: list[BaseException]
) -> threading.Thread:
    """A thread that calls ``act`` again and again, until ``stop`` or until it fails, which ends the soak."""

    def loop() -> None:
        try:
            while not stop.wait(seconds):
                act()
        except BaseException as fault:
            faults.append(fault)
            stop.set()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    return thread


def soak(place: Path, seconds: float, rate: float, beside_s: float) -> dict[str, Any]:
    """Run it; what was found. ``beside_s``: how often maintenance, and verdicts with alerts, run."""
    tame_kafka()
    settings = demo_settings(load("local"), prepare(place))
    pipeline = {"vacuum_retention_ms": 60_000, "clock_interval_ms": NEVER_MS}
    settings = settings.model_copy(
        update={
            "pipeline": settings.pipeline.model_copy(update=pipeline),
            "spark": settings.spark.model_copy(update={"trigger_interval_ms": 2_000}),
        }
    )
    samples: list[dict[str, Any]] = []
    faults: list[BaseException] = []
    with running_broker(settings, place / "kafka") as there:
        ensure_evidence_topic(there)
        playing, running = threading.Event(), threading.Event()
        traffic = Traffic(there, rate, seconds, playing)
        with spark_session(there, "soak") as spark:

            def sample() -> None:
                read = sum(at.next_offset for at in recorded(there.paths).values())
                looked: dict[str, Any] = {
                    "s": round(time.monotonic() - began, 1),
                    "written": traffic.records,
                    "read": read,
                }
                looked |= {"memory_mb": memory_mb(), "state_bytes": state_bytes(there), "tables": table_sizes(there)}
                samples.append(looked)
                with (place / "samples.jsonl").open("a", encoding="utf-8") as file:
                    file.write(json.dumps(looked) + "\n")

            def finish() -> None:
                """Stop the traffic when its time is over, and the queries when they have read it."""
                if time.monotonic() - began >= seconds or traffic.fault:
                    playing.set()
                if not traffic.is_alive() and samples and samples[-1]["read"] >= traffic.records:
                    running.set()

            deleted: dict[str, int] = defaultdict(int)

            def maintained() -> None:
                for done in maintain.run(there, now_ms=traffic.now_ms):
                    deleted[done.table] += done.rows_deleted

            run_chain(spark, there)  # makes the tables
            began = time.monotonic()
            traffic.start()
            threads = [
                every(SAMPLE_S, running, lambda: (sample(), finish()), faults),
                every(beside_s, running, maintained, faults),
                every(beside_s, running, lambda: judged(spark, there, lambda _: None), faults),
            ]
            run_continuously(spark, there, running)
            took_s = time.monotonic() - began
            for thread in threads:
                thread.join()
            for fault in filter(None, [traffic.fault, *faults]):
                raise fault
            run_chain(spark, there)
            close(spark, there, close_after_ms=HOUR_MS)
            judged(spark, there, lambda _: None)
            maintained()
    truth = traffic.truth()
    truth.save(place / "truth")
    lost_after_ms = settings.pipeline.timeout_for_lost_messages_ms
    differences = [str(each) for each in check(truth, read_observed(settings.paths.data_dir), lost_after_ms)]
    grown = dict(growth(samples))
    return {
        "seconds": round(took_s),
        "records": traffic.records,
        "records_per_s": round(traffic.records / took_s, 1),
        "conversations": traffic.conversations,
        "messages": len(truth.messages),
        "rows_deleted": {name: count for name, count in sorted(deleted.items()) if count},
        "growth": {name: round(ratio, 2) for name, ratio in grown.items()},
        "too_much": sorted(name for name, ratio in grown.items() if took_s >= LONG_S and ratio > limit(name)),
        "last": samples[-1],
        "differences": differences,
    }


def growth(samples: list[dict[str, Any]]) -> Iterator[tuple[str, float]]:
    """Name → the last third's median in relation to that of the time between a tenth and four tenths of the run."""
    early = samples[len(samples) // 10 : max(2, len(samples) * 4 // 10)]
    late = samples[-max(1, len(samples) // 3) :]
    measures: dict[str, Callable[[dict[str, Any]], float]] = {
        f"memory of {who}": (lambda one, who=who: one["memory_mb"].get(who, 0.0)) for who in samples[-1]["memory_mb"]
    }
    for name in samples[-1]["tables"]:
        measures[f"files of {name}"] = lambda one, name=name: one["tables"].get(name, {}).get("files", 0)
    for what, of in measures.items():
        if before := median(map(of, early)):
            yield what, median(map(of, late)) / before


def limit(name: str) -> float:
    """How much of it may be there."""
    return MEMORY_GROWTH if name.startswith("memory") else FILES_GROWTH


def main() -> int:
    """Parse the arguments, run, print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Hours of traffic, checked in the end.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long traffic is sent")
    parser.add_argument("--rate", type=float, default=100.0, help="records/s")
    parser.add_argument(
        "--beside", type=float, default=60.0, help="s between two rounds of maintenance and of verdicts"
    )
    parser.add_argument("--dir", type=Path, default=Path("build/soak"), help="emptied first")
    options = parser.parse_args()
    place = options.dir.resolve()
    result = soak(place, options.seconds, options.rate, options.beside)
    (place / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result, indent=1))
    return 1 if result["differences"] or result["too_much"] else 0


if __name__ == "__main__":
    sys.exit(main())
