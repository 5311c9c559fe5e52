"""``make soak``: mixed traffic through a real broker and all jobs for as long as is asked, with maintenance, retention,
verdicts and alerts beside it. In the end the tables and the verdicts are compared with the truth, and memory, state,
files and logs with what they were after the first tenth.

One simulated conversation is played after another, each with channels of its own and later in virtual time, so that
days pass and rows reach their retention. ``DIR/samples.jsonl`` has a line for every look at all sizes,
``OUTPUT/soak.json`` the result. Exit code 1: a difference from the truth, or something that grew.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.jobs.usage import files_below, process_tree
from reliable_channel.cli.commands.demo import HOUR_MS, demo_settings, prepare
from reliable_channel.cli.commands.run import run_verdicts
from reliable_channel.config import Settings, load
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_tables
from reliable_channel.lake.tables import TABLES
from reliable_channel.pipeline.clock import read_progress
from reliable_channel.pipeline.maintenance import maintain
from reliable_channel.pipeline.runner.metrics import record_metrics
from reliable_channel.pipeline.runner.run import close, run_chain, run_continuously
from reliable_channel.runtime.broker import running_broker
from reliable_channel.runtime.logs import tame_kafka
from reliable_channel.runtime.spark import spark_session
from reliable_channel.runtime.topics import ensure_evidence_topic
from reliable_channel.simulation.check.observed import Difference
from reliable_channel.simulation.check.promises import check
from reliable_channel.simulation.check.tables import read_observed, read_verdicts
from reliable_channel.simulation.check.verdicts import check_verdicts
from reliable_channel.simulation.evidence import sender_events
from reliable_channel.simulation.journal import ObserverRecord
from reliable_channel.simulation.presets import demo_scenario, small_scenario
from reliable_channel.simulation.scenario import Scenario
from reliable_channel.simulation.to_kafka import write_events, write_records
from reliable_channel.simulation.truth import Truth
from reliable_channel.simulation.world import simulate

DAYS = 12
"""Virtual days that a soak spans: more than the shortest retention of a table (7), less than that of any table which is
compared with the truth (30)."""
DAYS_MS = DAYS * 24 * HOUR_MS
RECORDS = 380
"""Of a conversation, about."""
SHORTEST_MS = 15 * 60_000
"""The longest conversation takes 14 virtual minutes; the next one begins after it."""
CHANNEL_EXPIRY_MS = 12 * HOUR_MS
"""Channels of ended conversations rest after so long: half of a virtual day, a twenty-fourth of the run."""
Z_ORDER_BYTES = 256 * 1024 * 1024
"""Up to this size maintenance writes a whole table anew: a sixteenth of the real figure, as the day is short."""
SAMPLE_S = 5.0
PEAK_S = 300.0
LOG_KEPT_S = 600.0
"""Entries of Delta's logs, and the names of replaced files in their checkpoints, stay at least so long, and else a
tenth of the run; by Delta's defaults it is 30 and 7 days. A query or a round of verdicts that takes longer breaks off,
as what it reads is no longer in the log."""
NEVER_MS = 10**10


@dataclass(frozen=True)
class Limit:
    """How much of a measure there may be late in the run: ``ratio`` times as much as early, and ``more`` besides."""

    ratio: float
    more: float


LIMITS = {
    "MB of memory": Limit(1.3, 50),
    "bytes of checkpoints": Limit(1.5, 5e6),
    "files of checkpoints": Limit(1.5, 200),
    "files": Limit(2.0, 20),
    "bytes of log": Limit(2.0, 200_000),
    "files of log": Limit(2.0, 30),
}
"""What must not grow. Everything else is only reported: rows and bytes of tables follow what was sent until their
retention comes, and throughput is a time."""
GROWTH_COUNTS_FROM_S = 3 * LOG_KEPT_S
"""How long a run must be for that to count (s): at first Java fills its heap, tables and checkpoints fill, and no entry
of a log is old enough to be removed."""


@dataclass(frozen=True)
class Load:
    """``rate`` records/s for ``seconds``; in their second third, for five minutes at most, ``peak`` times that."""

    rate: float
    seconds: float
    peak: float = 1.0

    @property
    def peak_s(self) -> tuple[float, float]:
        """When the peak begins and ends."""
        return self.seconds / 3, self.seconds / 3 + min(PEAK_S, self.seconds / 3)

    def rate_at(self, s: float) -> float:
        """The records/s after ``s`` seconds."""
        begin, end = self.peak_s
        return self.rate * (self.peak if begin <= s < end else 1)

    @property
    def records(self) -> int:
        """How many records that are."""
        begin, end = self.peak_s
        return int(self.rate * (self.seconds + (self.peak - 1) * (end - begin)))


BROKER_BACK_MS = 300_000
"""How long a conversation waits for a broker that a fault has ended before it begins."""


class Traffic:
    """A process that plays conversations one after another under a load, and then writes the truth about them to
    ``place``. A process of its own, so that what it remembers is not in the driver's memory."""

    def __init__(self, settings: Settings, load: Load, place: Path, days_ms: int = DAYS_MS) -> None:
        start = multiprocessing.get_context("spawn")
        longest_ms = days_ms + (load.records // RECORDS + 1) * SHORTEST_MS
        self._now_ms = start.Value("q", time.time_ns() // 1_000_000 - HOUR_MS - longest_ms)
        self._records, self._conversations, self._rate = start.Value("q", 0), start.Value("q", 0), start.Value("d", 0)
        arguments = (settings, load, place, days_ms, self._now_ms, self._records, self._conversations, self._rate)
        self.process = start.Process(target=_play, args=arguments, daemon=True)

    @property
    def records(self) -> int:
        """How many were written to Kafka."""
        return int(self._records.value)

    @property
    def conversations(self) -> int:
        """How many were begun."""
        return int(self._conversations.value)

    @property
    def rate(self) -> float:
        """The records/s that are asked for at present."""
        return float(self._rate.value)

    @property
    def now_ms(self) -> int:
        """The virtual time at which the newest conversation began."""
        return int(self._now_ms.value)


def _play(
    settings: Settings, load: Load, place: Path, days_ms: int, now_ms: Any, records: Any, conversations: Any, rate: Any
) -> None:
    """What the process of :class:`Traffic` does. A conversation is played to its end. What it was late with, as the
    next was simulated or the broker was down, follows at once."""
    tame_kafka()
    kafka, began, first_ms = settings.kafka, time.monotonic(), now_ms.value
    producer = {**kafka.clients().producer, "bootstrap_timeout_ms": BROKER_BACK_MS}
    truths: list[Truth] = []
    due_s = 0.0

    def pace(sent: Iterable[ObserverRecord]) -> Iterator[ObserverRecord]:
        nonlocal due_s
        for record in sent:
            rate.value = load.rate_at(time.monotonic() - began)
            due_s += 1 / rate.value
            time.sleep(max(0.0, began + due_s - time.monotonic()))
            yield record
            records.value += 1

    while (passed_s := time.monotonic() - began) < load.seconds:
        if truths:
            now_ms.value = max(now_ms.value + SHORTEST_MS, first_ms + int(passed_s / load.seconds * days_ms))
        world = simulate(conversation(len(truths), now_ms.value))
        conversations.value += 1
        coordinates = write_records(pace(world.records), kafka.topics.envelopes, producer)
        write_events(sender_events(world.journals), settings.bridge.evidence_topic, producer)
        truths.append(world.truth.locate(coordinates))
    fields = [field.name for field in dataclasses.fields(Truth)]
    Truth(**{name: [row for one in truths for row in getattr(one, name)] for name in fields}).save(place)


def conversation(number: int, start_ms: int) -> Scenario:
    """Every fourth is the demo's, with five channels and large segments; the others are small. Nobody sends the same
    file twice: with losses in both sends they cannot always be told apart (docs/demo.md, *Known limit*)."""
    scenario = demo_scenario(number) if number % 4 == 3 else small_scenario(number)
    channels = tuple(replace(plan, channel_id=f"{plan.channel_id}-{number}", repeats=0.0) for plan in scenario.channels)
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
        if b"java" in command.split(b"\0")[0]:
            who = "broker" if b"kafka.Kafka" in command else "JVM"
        elif pid == os.getpid() or b"pyspark" in command:
            who = "driver" if pid == os.getpid() else "workers"
        else:  # the traffic, and what watches the broker
            continue
        found[who] += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6
    return {who: round(mb, 1) for who, mb in sorted(found.items())}


def sizes(settings: Settings, spark: SparkSession) -> dict[str, float]:
    """Measure → value: memory, checkpoints, rows of state, and per table its rows, files and log."""
    found = {f"MB of memory: {who}": mb for who, mb in memory_mb().items()}
    found["files of checkpoints"], found["bytes of checkpoints"] = on_disk(Path(settings.paths.checkpoint_dir))
    for query in spark.streams.active:
        state = (query.lastProgress or {}).get("stateOperators") or []  # type: ignore[call-overload]
        found[f"rows of state: {query.name}"] = sum(operator["numRowsTotal"] for operator in state)
    for name, table in open_tables(settings.paths).items():
        actions = pa.table(table.get_add_actions(flatten=True))
        place = Path(settings.paths.table(name))
        found[f"files: {name}"] = actions.num_rows
        found[f"rows: {name}"] = sum(actions["num_records"].to_pylist())
        found[f"bytes: {name}"] = sum(actions["size_bytes"].to_pylist())
        found[f"files of log: {name}"], found[f"bytes of log: {name}"] = on_disk(place / "_delta_log")
    return found


def on_disk(place: Path) -> tuple[int, int]:
    """How many files are under ``place``, and their bytes."""
    sizes = [stat.st_size for _, stat in files_below(place)]
    return len(sizes), sum(sizes)


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


def soak_settings(place: Path) -> Settings:
    """The demo's configuration in a run directory, for conversations in virtual time that follow one another."""
    settings = demo_settings(load("local"), place)
    pipeline = {"clock_interval_ms": NEVER_MS, "channel_expiry_ms": CHANNEL_EXPIRY_MS, "vacuum_retention_ms": HOUR_MS}
    conf = {**settings.spark.conf, "spark.sql.streaming.minBatchesToRetain": "5"}  # Spark's default of 100 fills slowly
    return settings.model_copy(
        update={
            "pipeline": settings.pipeline.model_copy(update=pipeline),
            # The truth knows no set that is given up before its conversation has ended; the run is closed later.
            "segmentation": replace(settings.segmentation, max_set_lifetime_ms=HOUR_MS),
            "spark": settings.spark.model_copy(update={"trigger_interval_ms": 2_000, "conf": conf}),
        }
    )


def soak(place: Path, load: Load, judge_s: float) -> dict[str, Any]:
    """Run it; what was found. Maintenance runs once in a virtual day, verdicts and alerts every ``judge_s``."""
    tame_kafka()
    maintain.Z_ORDER_BYTES = Z_ORDER_BYTES
    settings = soak_settings(prepare(place))
    samples: list[dict[str, Any]] = []
    faults: list[BaseException] = []
    deleted: dict[str, int] = defaultdict(int)
    with running_broker(settings, place / "kafka") as there, spark_session(there, "soak") as spark:
        ensure_evidence_topic(there)
        traffic = Traffic(there, load, place / "truth")
        running = threading.Event()

        def sample() -> None:
            """Look at everything; stop the queries when they have read all, after the traffic has ended."""
            read = count_read(there)
            counts = {"written": traffic.records, "read": read, "conversations": traffic.conversations}
            at = {"s": round(time.monotonic() - began, 1), "rate": traffic.rate}
            looked = {**at, **counts, "sizes": sizes(there, spark)}
            samples.append(looked)
            with (place / "samples.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(looked) + "\n")
            if not traffic.process.is_alive() and (traffic.process.exitcode or read >= traffic.records):
                running.set()

        def maintained() -> None:
            for done in maintain.run(there, now_ms=traffic.now_ms):
                deleted[done.table] += done.rows_deleted

        def judge() -> None:
            run_verdicts(spark.newSession(), there, lambda _: None)

        create_tables(there.paths, TABLES)
        keep_logs(there, max(LOG_KEPT_S, load.seconds / 10))
        with record_metrics(spark, there, serve=False):
            began = time.monotonic()
            traffic.process.start()
            threads = [
                every(SAMPLE_S, running, sample, faults),
                every(load.seconds / DAYS, running, maintained, faults),
                every(judge_s, running, judge, faults),
            ]
            run_continuously(spark, there, running)
            took_s = time.monotonic() - began
        for thread in threads:
            thread.join()
        for fault in faults:
            raise fault
        if traffic.process.exitcode:
            raise RuntimeError("The traffic broke off; its error is above.")
        run_chain(spark, there)
        close(spark, there, close_after_ms=HOUR_MS)
        judge()
        maintained()
        end = sizes(there, spark)
    truth = Truth.load(place / "truth")
    differences = differences_from(truth, settings)
    early, late = windows(samples)
    return {
        "seconds": round(took_s),
        "records": traffic.records,
        "conversations": traffic.conversations,
        "messages": len(truth.messages),
        "verdicts": end["rows: delivery_status"],
        "alerts": end["rows: alerts"],
        "rows_deleted": {name: count for name, count in sorted(deleted.items()) if count},
        "records_per_s": {"early": throughput(early), "late": throughput(late)},
        "records_behind": {"early": behind(early), "late": behind(late)},
        "peak": measure_peak(samples, load) if load.peak > 1 else None,
        "growth": growth(early, late, took_s),
        "end": end,
        "differences": [str(each) for each in differences],
    }


def count_read(settings: Settings) -> int:
    """How many records ingest has read."""
    return sum(at.next_offset for at in read_progress(settings.paths).values())


def differences_from(truth: Truth, settings: Settings) -> list[Difference]:
    """What tables and verdicts have otherwise than the truth."""
    lost_after_ms = settings.pipeline.timeout_for_lost_messages_ms
    differences = check(truth, read_observed(settings.paths.data_dir), lost_after_ms)
    wrong_verdicts = check_verdicts(truth, read_verdicts(settings.paths.data_dir))
    return differences + [each for each in wrong_verdicts if not lacks_a_store(each)]


def lacks_a_store(difference: Difference) -> bool:
    """Whether a verdict names no cause. That is right here: no store node is asked, and without one nobody knows."""
    return difference.what.endswith(("no cause is named", f"is said to be {None}"))


def keep_logs(settings: Settings, seconds: float) -> None:
    """Let maintenance remove entries of the tables' logs after ``seconds``, and let checkpoints of the logs leave out
    the names of files that were replaced so long ago."""
    kept = f"interval {seconds:.0f} seconds"
    properties = {"delta.logRetentionDuration": kept, "delta.deletedFileRetentionDuration": kept}
    for table in open_tables(settings.paths).values():
        table.alter.set_table_properties(properties)


def windows(samples: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The samples of the time between a tenth and four tenths of the run, and those of its last third."""
    count = len(samples)
    return samples[count // 10 : max(2, count * 4 // 10)], samples[-max(2, count // 3) :]


def throughput(samples: list[dict[str, Any]], count: str = "read") -> float:
    """Records/s that ingest read (or the traffic has ``written``) between the first and the last of ``samples``."""
    first, last = samples[0], samples[-1]
    return round((last[count] - first[count]) / (last["s"] - first["s"]), 1)


def behind(samples: list[dict[str, Any]]) -> float:
    """How many records wait in Kafka: the median."""
    return median(map(count_waiting, samples))


def measure_peak(samples: list[dict[str, Any]], load: Load) -> dict[str, Any]:
    """How many records/s came before and in the peak, how many records waited at most because of it, and how many
    seconds after its end no more waited than before it (half as many again, and what comes between two looks);
    ``None``: not until the traffic ended."""
    in_peak = [number for number, one in enumerate(samples) if one["rate"] > load.rate]
    if len(in_peak) < 2:
        raise ValueError("The peak was too short to be seen: send for longer.")
    begin, end = in_peak[0], in_peak[-1] + 1
    before, peak, after = samples[:begin], samples[begin:end], samples[end:]
    usual = 1.5 * max(map(count_waiting, before), default=0) + load.rate * SAMPLE_S
    worked_off = (one["s"] - peak[-1]["s"] for one in after if one["s"] <= load.seconds and count_waiting(one) <= usual)
    return {
        "usual_per_s": throughput(before, "written"),
        "peak_per_s": throughput(peak, "written"),
        "seconds": peak[-1]["s"] - peak[0]["s"],
        "most_behind": max(map(count_waiting, peak + after)),
        "worked_off_s": next(worked_off, None),
    }


def count_waiting(sample: dict[str, Any]) -> int:
    """How many records were written and not yet read."""
    return int(sample["written"] - sample["read"])


def growth(early: list[dict[str, Any]], late: list[dict[str, Any]], took_s: float) -> list[dict[str, Any]]:
    """Of every measure its median early and late, the limit of the late one (``None``: it may grow), and whether it is
    kept."""
    found = []
    for name in sorted(late[-1]["sizes"]):
        before, after = (median(one["sizes"].get(name, 0) for one in part) for part in (early, late))
        kind = name.partition(":")[0]
        limit = LIMITS.get(kind) if took_s >= GROWTH_COUNTS_FROM_S else None
        most = None if limit is None else before * limit.ratio + limit.more
        kept = most is None or after <= most
        found.append({"name": name, "early": before, "late": after, "limit": most, "kept": kept})
    return found


def told(result: dict[str, Any]) -> Iterator[str]:
    """The result in lines: a table of all measures, what grew, and the differences from the truth."""
    yield f"{'':44}{'10-40 %':>16}{'last third':>16}{'limit':>16}"
    for name in ("records_per_s", "records_behind"):
        yield f"{name:44}{result[name]['early']:>16,.0f}{result[name]['late']:>16,.0f}"
    for each in (each for each in result["growth"] if each["late"]):
        limit = "" if each["limit"] is None else f"{each['limit']:,.0f}"
        grown = "" if each["kept"] else "  GREW"
        yield f"{each['name']:44}{each['early']:>16,.0f}{each['late']:>16,.0f}{limit:>16}{grown}"
    if peak := result["peak"]:
        worked_off = (
            "not worked off" if peak["worked_off_s"] is None else f"worked off {peak['worked_off_s']:.0f} s later"
        )
        yield (
            f"{peak['peak_per_s']:.0f} records/s instead of {peak['usual_per_s']:.0f} for {peak['seconds']:.0f} s: "
            f"{peak['most_behind']:,.0f} records behind, {worked_off}"
        )
    yield f"rows deleted by retention: {result['rows_deleted']}"
    counts = (f"{result[name]:,.0f} {name}" for name in ("records", "messages", "verdicts", "alerts", "seconds"))
    yield ", ".join(counts)
    yield from result["differences"][:20]
    grew = [each["name"] for each in result["growth"] if not each["kept"]]
    yield f"{len(result['differences'])} differences from the truth; grew: {', '.join(grew) or 'nothing'}"
    yield "FAILED" if failed(result) else "passed"


def failed(result: dict[str, Any]) -> bool:
    """Whether a table differs from the truth, something grew, or the records of a peak still waited in the end. After
    a peak, which fills tables and memory, nothing is called growth."""
    if result["peak"]:
        return bool(result["differences"]) or result["peak"]["worked_off_s"] is None
    return bool(result["differences"]) or not all(each["kept"] for each in result["growth"])


def main() -> int:
    """Parse the arguments, run, print the result."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Hours of traffic, checked in the end.")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long traffic is sent")
    parser.add_argument("--rate", type=float, default=100.0, help="records/s")
    parser.add_argument("--peak", type=float, default=1.0, help="times the rate, for five minutes in the middle")
    parser.add_argument("--judge", type=float, default=60.0, help="s between two rounds of verdicts and alerts")
    parser.add_argument("--dir", type=Path, default=Path("build/soak"), help="emptied first")
    parser.add_argument("--output", type=Path, default=Path("build/bench"), help="where soak.json is written")
    options = parser.parse_args()
    result = soak(options.dir.resolve(), Load(options.rate, options.seconds, options.peak), options.judge)
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "soak.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("\n".join(told(result)))
    return int(failed(result))


if __name__ == "__main__":
    sys.exit(main())
