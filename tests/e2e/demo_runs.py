"""The small demo as a user starts it: a whole process, interrupted once, then run to its end in the same directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import WAIT_S

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "reliable_channel", "demo", "--small"]


@dataclass(frozen=True)
class DemoRun:
    """A run of the demo: its directory, exit code and output; and the command lines of processes it left behind."""

    place: Path
    returncode: int
    output: str
    errors: str
    left_behind: list[str]


def to_the_end(place: Path) -> DemoRun:
    """Run it until it ends by itself."""
    command = [*COMMAND, "--dir", str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False)
    return DemoRun(place, done.returncode, done.stdout, done.stderr, processes_of(place))


def interrupted(place: Path) -> DemoRun:
    """Run it, and press Ctrl-C while the jobs run: to the whole foreground group, as a terminal does."""
    process = subprocess.Popen(
        [*COMMAND, "--dir", str(place)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline = time.monotonic() + WAIT_S
    while not any((place / "checkpoints").glob("*/offsets/0")):
        if process.poll() is not None or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    output, errors = process.communicate(timeout=WAIT_S)
    return DemoRun(place, process.returncode, output, errors, processes_of(place))


def processes_of(place: Path) -> list[str]:
    """Command lines of living processes that name the directory of a run."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(place) in line and "pytest" not in line:
            found.append(line)
    return found
