"""Defines how a bench is registered and the results it yields."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Result:
    """One measured figure; ``target``: ``None`` for a figure that is only reported.

    Speed has a target only as a ratio to something measured in the same run, which ``against`` names: seconds and rates
    mean little on another machine."""

    name: str
    value: float
    unit: str
    target: float | None = None
    lower_is_better: bool = False
    against: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; ``None`` without one."""
        if self.target is None:
            return None
        return self.value <= self.target if self.lower_is_better else self.value >= self.target


@dataclass(slots=True)
class Sizes:
    """What the command line chooses: ``--scale``, ``--workload``, and the folder of ``--output``."""

    scale: float = 1.0
    workloads: tuple[str, ...] = ()
    output: Path = Path("build") / "bench"

    def scale_count(self, count: int, least: int = 1) -> int:
        """``count`` at this scale, but at least ``least``."""
        return max(least, int(count * self.scale))

    def count_repetitions(self, count: int) -> int:
        """How often to repeat a measurement: ``count`` times at full size, once in a smaller run."""
        return count if self.scale >= 1 else 1


SIZES = Sizes()

BenchFunction = Callable[[], Iterable[Result]]
REGISTERED: dict[str, list[BenchFunction]] = {}
"""Benches by module name, in the order of their definition."""


def bench(function: BenchFunction) -> BenchFunction:
    """Register a bench under its module's name."""
    REGISTERED.setdefault(function.__module__.rpartition(".")[2], []).append(function)
    return function


def best_of(
    action: Callable[[], object],
    seconds: float = 0.5,
    repetitions: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """The shortest time (s) of one call of ``action``, over at least ``repetitions`` calls and about ``seconds``; of a
    few in a smaller run. For single-threaded code that never waits, ``clock=time.thread_time`` excludes the
    time of other processes."""
    action()
    repetitions, seconds = SIZES.count_repetitions(repetitions), seconds * min(1.0, SIZES.scale)
    best, spent, calls = float("inf"), 0.0, 0
    while calls < repetitions or spent < seconds:
        started = clock()
        action()
        took = clock() - started
        best, spent, calls = min(best, took), spent + took, calls + 1
    return best


def cpu_of(action: Callable[[], object]) -> float:
    """The CPU time (s) of this process during one call of ``action``."""
    started = time.process_time()
    action()
    return time.process_time() - started


def memory_copy(size: int) -> float:
    """Measure the MB/s of copying ``size`` bytes between two arrays, now, on this machine, in one thread."""
    source = np.ones(size, dtype=np.uint8)
    target = np.empty_like(source)
    return size / MB / best_of(lambda: np.copyto(target, source), seconds=0.2, clock=time.thread_time)


@dataclass(slots=True)
class _Entry:
    name: str
    number: int


def python_step() -> float:
    """Measure the CPU seconds of a step of plain Python, now, on this machine: make an object, put it into a dictionary
    by a text, and look up the one before."""

    def loop() -> None:
        entries = {"": _Entry("", 0)}
        before = ""
        for number in range(10_000):
            name = f"{number:x}"
            entries[name] = _Entry(name, entries[before].number + 1)
            before = name

    return best_of(loop, seconds=0.1, clock=time.thread_time) / 10_000


STEP = "steps of plain Python"
"""What :func:`python_step` measures, as ``against`` names it."""
