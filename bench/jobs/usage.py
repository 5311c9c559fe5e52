"""Measures the CPU seconds and memory of this process and its descendants, and the CPU seconds of others on the same
cores, from ``/proc`` (Linux only)."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

_TICKS = os.sysconf("SC_CLK_TCK")
_WORTH_A_LOOK = 1.02


def process_tree(root: int) -> dict[int, list[str]]:
    """pid → the fields of ``/proc/<pid>/stat`` after the name, for ``root`` and its descendants."""
    stats: dict[int, list[str]] = {}
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # After the name, which may hold spaces and parentheses itself (man 5 proc).
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        stats[int(entry.name)] = fields
        children[int(fields[1])].append(int(entry.name))
    descendants, to_visit = {}, [root]
    while to_visit:
        pid = to_visit.pop()
        if pid in stats:
            descendants[pid] = stats[pid]
            to_visit += children[pid]
    return descendants


def cpu_seconds() -> float:
    """Return the user and system time of this process and its descendants, including ended ones that were waited
    for."""
    # The fields 11 to 14 are utime, stime, cutime and cstime, in ticks.
    return sum(sum(int(field) for field in fields[11:15]) for fields in process_tree(os.getpid()).values()) / _TICKS


def busy_seconds() -> float:
    """Return the CPU seconds that this process's allowed cores were busy since the machine started, for any process."""
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in ours:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in ticks[:8])
            total += user + nice + system + irq + softirq + steal
    return total / _TICKS


def resident_pages() -> int:
    """Return the resident pages of the process tree; pages shared by several processes count several times."""
    total = 0
    for pid in process_tree(os.getpid()):
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total


def files_below(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the path and status of every file below a directory that a running job changes: what is deleted meanwhile
    is left out. (``Path.rglob`` raises ``FileNotFoundError`` for a directory that vanishes before it is entered.)"""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            with suppress(FileNotFoundError):
                yield path, path.stat()


def memory_mb() -> float:
    """Return the proportional set size of the tree (MB): pages that workers share with the daemon that forked them
    count once.

    Takes 50 ms for a JVM of 3 GB, during which the JVM blocks if it needs a page."""
    total = 0
    for pid in process_tree(os.getpid()):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


class Usage:
    """``with Usage() as usage``: afterwards ``usage.cpu_s``, ``usage.others_s`` (CPU seconds of other processes on our
    cores) and ``usage.peak_mb``, measured whenever a check, twice a second, finds more resident pages than before."""

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self.others_s = 0.0
        self.peak_mb = 0.0
        self._done = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def _sample(self) -> None:
        most = 0.0
        while True:
            pages = resident_pages()
            if pages > most * _WORTH_A_LOOK:
                most = pages
                self.peak_mb = max(self.peak_mb, memory_mb())
            if self._done.wait(0.5):
                return

    def __enter__(self) -> Usage:
        self.cpu_s = -cpu_seconds()
        self.others_s = -busy_seconds()
        self._sampler.start()
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.cpu_s += cpu_seconds()
        self.others_s = max(0.0, self.others_s + busy_seconds() - self.cpu_s)
        self._done.set()
        self._sampler.join()
