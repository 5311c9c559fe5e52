"""What this process and everything it started use, and what others take from the same cores meanwhile: CPU seconds and
memory, from ``/proc`` (Linux only)."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
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
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        stats[int(entry.name)] = fields
        children[int(fields[1])].append(int(entry.name))
    found, to_visit = {}, [root]
    while to_visit:
        pid = to_visit.pop()
        if pid in stats:
            found[pid] = stats[pid]
            to_visit += children[pid]
    return found


def cpu_seconds() -> float:
    """User and system time of this process, its descendants, and those of them that ended and were waited for."""
    return sum(sum(int(field) for field in fields[11:15]) for fields in process_tree(os.getpid()).values()) / _TICKS


def busy_seconds() -> float:
    """CPU seconds that the cores which this process may run on were busy since the machine started, with whatever."""
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    total = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *ticks = line.split()
        if name in ours:
            user, nice, system, _idle, _iowait, irq, softirq, steal = (int(field) for field in ticks[:8])
            total += user + nice + system + irq + softirq + steal
    return total / _TICKS


def resident_pages() -> int:
    """Pages that the processes of the tree have in memory; those that several share count several times."""
    total = 0
    for pid in process_tree(os.getpid()):
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            continue
    return total


def memory_mb() -> float:
    """Proportional set size of the tree (MB): pages that workers share with the daemon they forked from count once.

    Takes 50 ms for a JVM of 3 GB, which waits meanwhile when it wants a page."""
    total = 0
    for pid in process_tree(os.getpid()):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total * 1024 / 1e6


class Usage:
    """``with Usage() as usage``: afterwards ``usage.cpu_s``, ``usage.others_s`` (CPU seconds that everybody else took
    from our cores) and ``usage.peak_mb``: measured when, twice a second, more is resident than before."""

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
