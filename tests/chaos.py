"""``make soak CHAOS=1``: the soak's traffic while faults strike a continuous run, as an operator has it: a broker and a
job, each started again when it has ended. In the end the tables and verdicts are compared with the truth, and the
alerts with those of an undisturbed run over the same records.

The seed gives the plan of faults, which is printed first. The tables are on a small disk of their own, which is filled,
where one can be mounted. Of the clocks, that of the job's driver jumps; the JVM, the broker and the Python workers keep
the machine's. ``DIR/job.log`` has what the job printed. Exit code 1: a difference.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import time_machine

from bench.jobs.usage import process_tree
from reliable_channel.analysis.alerts.changes import OTHERS
from reliable_channel.analysis.alerts.log import AlertLog
from reliable_channel.cli.commands.demo import HOUR_MS, prepare
from reliable_channel.cli.commands.run import run_verdicts, serve
from reliable_channel.config import Settings
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.tables import TABLES
from reliable_channel.pipeline.maintenance import maintain
from reliable_channel.pipeline.runner.run import close, run_chain
from reliable_channel.runtime import broker, jars
from reliable_channel.runtime.logs import tame_kafka
from reliable_channel.runtime.spark import spark_session
from reliable_channel.runtime.topics import ensure_evidence_topic
from reliable_channel.simulation.truth import Truth
from tests.soak import Load, Traffic, count_read, differences_from, soak_settings
from tests.support.delta_tables import read_table
from tests.support.disk import filled, small_disk_at

DISK_MB, MB_PER_RECORD = 2_048, 0.08
"""The disk: what a job needs to start and to work, and what the records take in all tables and
replaced files."""
MAINTAIN_S, MAINTENANCE_RUNS = 30.0, 20
"""Maintenance runs that often, but no more times than that: what each replaces stays for an hour, the least that
delta-rs allows, and all of it has to fit on the disk."""
RESTART_S = 2.0
"""How long after its end the job is started again; the systemd unit waits longer."""
FIRST_S, EVERY_S = 60.0, 50.0
"""When the first fault strikes, and how far apart two are."""
LASTS_S = 30.0
"""How long a pause, a wrong clock, a full disk and a broker's absence last at most."""
JUMP_S = 7_200.0
"""How far the clock jumps, forward or back."""
STOP_S = 180.0
CATCH_UP_S = 1_200.0
OPERATION = frozenset({"lag_offsets", "lag_commits"})
"""Alerts about the run itself: true while a fault lasts."""
NEVER = frozenset({"failed_rows", "over_quota", "mixed_families", "other_family", "topic_in_partitions"})
"""Alerts for which no conversation of the soak gives a reason."""


def _serve(settings: Settings, log: Path, ahead_s: Synchronized[float]) -> None:
    """The job: ``reliable-channel run --continuous``, with settings that no configuration file can have."""
    threading.Thread(target=_set_clock, args=(ahead_s,), daemon=True).start()
    with log.open("ab", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    tame_kafka()
    with spark_session(settings, "chaos") as spark:
        serve(spark, settings, lambda what: print(what, flush=True))


def _set_clock(ahead_s: Synchronized[float]) -> None:
    """Keep the clock of this process ahead of the machine's by ``ahead_s``."""
    with ExitStack() as jump:
        now = 0.0
        while True:
            if (wanted := ahead_s.value) != now:
                now = wanted
                jump.close()
                if now:
                    jump.enter_context(time_machine.travel(time.time() + now, tick=True))
            time.sleep(0.1)


@dataclass
class Operated:
    """The job and the broker, each started again when it has ended."""

    settings: Settings
    place: Path
    ends: Counter[int | None] = field(default_factory=Counter)
    """Exit code → how often the job ended with it."""

    def __post_init__(self) -> None:
        self.at_broker = self.settings.with_run_dir(self.place)
        self.may_run = threading.Event()
        self.broker_down = threading.Lock()
        self.ahead_s = get_context("spawn").Value("d", 0.0)
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._keep_running, daemon=True)
        self.job: SpawnProcess

    def start(self) -> None:
        broker.start(self.at_broker)
        ensure_evidence_topic(self.settings)
        self._start_job()
        self._watch.start()

    def _start_job(self) -> None:
        self.job = get_context("spawn").Process(
            target=_serve, args=(self.settings, self.place / "job.log", self.ahead_s), daemon=True
        )
        self.job.start()

    def _keep_running(self) -> None:
        while not self._over.wait(0.5):
            if not self.job.is_alive():
                self.ends[self.job.exitcode] += 1
                self._over.wait(RESTART_S)
                self._start_job()
            with self.broker_down:
                if self.broker_pid() is None:
                    broker.start(self.at_broker)

    @property
    def job_tree(self) -> list[int]:
        """The job, its JVM and its Python workers."""
        return list(process_tree(self.job.pid)) if self.job.pid and self.job.is_alive() else []

    def workers(self) -> list[int]:
        """The Python workers, and the daemon that forks them."""
        return [
            pid for pid in self.job_tree if pid not in (self.job.pid, *self.jvm()) and b"pyspark" in command_of(pid)
        ]

    def jvm(self) -> list[int]:
        return [pid for pid in self.job_tree if b"java" in command_of(pid).split(b"\0")[0]]

    def broker_pid(self) -> int | None:
        return broker.running_pid(broker.files(self.at_broker))

    def stop_job(self) -> int | None:
        """Stop the job as an operator does; its exit code."""
        self._over.set()
        self._watch.join()
        self.job.terminate()
        self.job.join(STOP_S)
        return self.job.exitcode

    def close(self) -> None:
        """End everything that still runs."""
        self._over.set()
        for pid in self.job_tree:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        broker.stop(self.at_broker)


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended
        return b""


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def pause(pids: list[int], seconds: float) -> None:
    """Stop processes for a while, as a machine that sleeps or swaps does."""
    send(pids, signal.SIGSTOP)
    time.sleep(seconds)
    send(pids, signal.SIGCONT)


def kill_job(run: Operated, _: random.Random) -> None:
    send(run.job_tree, signal.SIGKILL)


def kill_jvm(run: Operated, _: random.Random) -> None:
    send(run.jvm(), signal.SIGKILL)


def kill_worker(run: Operated, rng: random.Random) -> None:
    if workers := run.workers():
        send([rng.choice(workers)], signal.SIGKILL)


def kill_broker(run: Operated, rng: random.Random) -> None:
    with run.broker_down:
        if pid := run.broker_pid():
            send([pid], signal.SIGKILL)
        time.sleep(rng.uniform(0, LASTS_S / 2))


def pause_job(run: Operated, _: random.Random) -> None:
    pause(run.job_tree, LASTS_S)


def pause_broker(run: Operated, _: random.Random) -> None:
    if pid := run.broker_pid():
        pause([pid], LASTS_S)


def jump_clock(run: Operated, rng: random.Random) -> None:
    run.ahead_s.value = rng.choice((-JUMP_S, JUMP_S))
    time.sleep(LASTS_S)
    run.ahead_s.value = 0.0


def fill_disk(run: Operated, rng: random.Random) -> None:
    with filled(Path(run.settings.paths.run_dir)):
        time.sleep(rng.uniform(5, LASTS_S))


Fault = Callable[[Operated, random.Random], None]
FAULTS: tuple[Fault, ...] = (kill_job, kill_jvm, kill_worker, kill_broker, pause_job, pause_broker, jump_clock)


def plan(rng: random.Random, seconds: float, faults: list[Fault]) -> Iterator[tuple[float, Fault]]:
    """When (s) which fault strikes: each once before any strikes again."""
    at, left = FIRST_S, list[Fault]()
    while at < seconds:
        left = left or rng.sample(faults, len(faults))
        yield at, left.pop()
        at += EVERY_S * rng.uniform(0.6, 1.4)


def wrong_alerts(settings: Settings, undisturbed: Settings) -> list[str]:
    """How the alerts differ from what they must be."""

    def raised(one: Settings) -> set[tuple[str, str]]:
        return {key for key in AlertLog(one.paths).open_alerts() if key[0] not in OPERATION}

    open_now, wanted = raised(settings), raised(undisturbed)
    # Of too many subjects, those have alerts that were above the threshold first.
    bounded = {name for name, subject in open_now | wanted if subject == OTHERS}
    open_now, wanted = ({(n, s) for n, s in each if n not in bounded or s == OTHERS} for each in (open_now, wanted))
    wrong = [f"alert {name} of {subject} is missing" for name, subject in sorted(wanted - open_now)]
    wrong += [f"alert {name} of {subject} is false" for name, subject in sorted(open_now - wanted)]
    states: dict[tuple[str, str], str] = {}
    for row in sorted(read_table(settings.paths.data_dir, "alerts").to_pylist(), key=lambda row: row["sequence"]):
        key = (row["alert"], row["subject"])
        if row["alert"] in NEVER:
            wrong.append(f"alert {row['alert']} of {row['subject']} was {row['state']}: {row['detail']}")
        if states.get(key, "cleared") == row["state"]:
            wrong.append(f"alert {row['alert']} of {row['subject']} was {row['state']} twice")
        states[key] = row["state"]
    return wrong


def chaos(place: Path, seconds: float, rate: float, seed: int, say: Callable[[str], None]) -> list[str]:
    """Run it; the differences."""
    tame_kafka()
    rng, run_dir, wrong = random.Random(seed), prepare(place) / "run", list[str]()
    run_dir.mkdir()
    faults = list(FAULTS)
    with ExitStack() as stack:
        if stack.enter_context(small_disk_at(run_dir, DISK_MB + int(seconds * rate * MB_PER_RECORD))):
            faults.append(fill_disk)
        else:
            say("left out: the full disk, since no disk of its own can be mounted here (that takes root)")
        planned = list(plan(rng, seconds, faults))
        say(f"seed {seed}: " + ", ".join(f"{at:.0f} s {fault.__name__}" for at, fault in planned))

        settings = chaos_settings(place, run_dir)
        jars.ensure(settings.paths.cache_dir, settings.paths.ivy_settings)
        run = Operated(settings, place)
        stack.callback(run.close)
        create_tables(settings.paths, TABLES)
        run.start()
        traffic = Traffic(settings, Load(rate, seconds), place / "truth", days_ms=0)
        began = time.monotonic()
        traffic.process.start()
        maintained = threading.Event()
        stack.callback(maintained.set)
        every_s = max(MAINTAIN_S, seconds / MAINTENANCE_RUNS)
        keeper = threading.Thread(
            target=keep_maintained, args=(settings, traffic, every_s, maintained, say), daemon=True
        )
        keeper.start()

        def say_progress(what: str) -> None:
            say(f"{time.monotonic() - began:5.0f} s {what}: {count_read(settings)} of {traffic.records} records read")

        for at, fault in planned:
            time.sleep(max(0, began + at - time.monotonic()))
            say_progress(fault.__name__)
            fault(run, rng)
        traffic.process.join()
        if traffic.process.exitcode:
            raise RuntimeError("The traffic broke off; its error is above.")
        say_progress("the traffic has ended")
        deadline = time.monotonic() + CATCH_UP_S
        while count_read(settings) < traffic.records and time.monotonic() < deadline:
            time.sleep(1)
        say_progress(f"the job has ended by itself or by a fault {dict(run.ends)} times (exit code: times)")
        if code := run.stop_job():
            wrong.append(f"the job ended with {code} after SIGTERM")
        maintained.set()
        keeper.join()
        undisturbed = settings.with_run_dir(place / "undisturbed")
        with spark_session(settings, "chaos") as spark:
            for one in (settings, undisturbed):
                create_tables(one.paths, TABLES)
                run_chain(spark, one)
                close(spark, one, close_after_ms=HOUR_MS)
                run_verdicts(spark.newSession(), one, lambda _: None)
        differences = differences_from(Truth.load(place / "truth"), settings)
        wrong += [str(each) for each in differences] + wrong_alerts(settings, undisturbed)
        say(f"{read_table(settings.paths.data_dir, 'alerts').num_rows} rows of alerts")
    return wrong


def chaos_settings(place: Path, run_dir: Path) -> Settings:
    """The soak's settings with a broker of its own, and verdicts and alerts every 20 s."""
    settings = soak_settings(place).with_run_dir(run_dir)
    port = broker.free_port()
    own = settings.kafka.model_copy(update={"broker": settings.kafka.broker.model_copy(update={"port": port})})
    pipeline = settings.pipeline.model_copy(update={"verdict_interval_ms": 20_000})
    return settings.model_copy(update={"kafka": own, "pipeline": pipeline}).with_servers(f"{broker.HOST}:{port}")


def keep_maintained(
    settings: Settings, traffic: Traffic, every_s: float, over: threading.Event, say: Callable[[str], None]
) -> None:
    """Maintain the tables again and again; a fault is printed, and the next run tries again."""
    while not over.wait(every_s):
        try:
            maintain.run(settings, now_ms=traffic.now_ms)
        except Exception as fault:
            say(f"      maintenance: {str(fault).splitlines()[0][:160]}")


def main() -> int:
    """Parse the arguments, run, print what is wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description="Traffic and faults, checked in the end."
    )
    parser.add_argument("--seconds", type=float, default=600.0, help="how long traffic is sent")
    parser.add_argument("--rate", type=float, default=30.0, help="records/s")
    parser.add_argument("--seed", type=int, default=1, help="of the plan of faults")
    parser.add_argument("--dir", type=Path, default=Path("build/chaos"), help="emptied first")
    options = parser.parse_args()
    wrong = chaos(
        options.dir.resolve(), options.seconds, options.rate, options.seed, lambda what: print(what, flush=True)
    )
    print("\n".join([*wrong[:40], f"{len(wrong)} differences", "FAILED" if wrong else "passed"]))
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
