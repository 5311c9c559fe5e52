"""Sessions that were killed fill no disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SESSION = """
import sys
from pathlib import Path
from reliable_channel.runtime.spark import enter_scratch
enter_scratch(Path(sys.argv[1]))
print("entered", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    directory = tmp_path / "spark"
    (directory / "blockmgr-1" / "00").mkdir(parents=True)
    (directory / "blockmgr-1" / "00" / "shuffle").write_bytes(b"rows")
    (directory / "librocksdbjni1.so").write_bytes(b"code")
    (directory / "elsewhere").symlink_to(tmp_path)
    return directory


def enter_and_end(scratch: Path) -> None:
    """A session of another process, from its start to its end."""
    subprocess.run([sys.executable, "-c", SESSION, str(scratch)], input=b"", capture_output=True, check=True)


def test_what_a_killed_session_left_is_removed_once_none_runs(scratch: Path) -> None:
    running = subprocess.Popen(
        [sys.executable, "-c", SESSION, str(scratch)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stdout.readline() == b"entered\n"
    assert [*scratch.iterdir()] == []
    (scratch / "blockmgr-2").mkdir()
    enter_and_end(scratch)  # beside a session that runs
    assert [*scratch.iterdir()] == [scratch / "blockmgr-2"]
    running.kill()
    running.communicate()
    enter_and_end(scratch)
    assert [*scratch.iterdir()] == []
    assert scratch.parent.is_dir()
