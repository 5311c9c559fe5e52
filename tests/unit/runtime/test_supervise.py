"""A supervised child ends with its parent, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.waiting import until

PARENT = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit it ignored
child = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
supervisor = [sys.executable, "-m", "reliable_channel.runtime.supervise", str(os.getpid()),
              sys.executable, "-c", child, sys.argv[1]]
with subprocess.Popen(supervisor, stdin=subprocess.PIPE, start_new_session=True) as process:
    while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])):
        time.sleep(0.01)
    print("up", flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):  # a system without /proc, or the process has just ended
        return not Path("/proc").is_dir()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_the_child_ends_when_the_parent_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    pid_file = tmp_path / "pid"
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(pid_file)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "up\n"
        child = int(pid_file.read_text(encoding="ascii"))
        assert alive(child)
        parent.send_signal(number)
        parent.wait(120)
    until(lambda: not alive(child))


def test_the_exit_code_is_the_childs() -> None:
    command = [sys.executable, "-m", "reliable_channel.runtime.supervise", str(os.getpid()), sys.executable, "-c"]
    with subprocess.Popen([*command, "raise SystemExit(7)"], stdin=subprocess.PIPE) as process:
        assert process.wait(120) == 7


def test_a_parent_that_is_gone_already_starts_nothing() -> None:
    command = [sys.executable, "-m", "reliable_channel.runtime.supervise", "1", sys.executable, "-c", "print('ran')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (1, "")
