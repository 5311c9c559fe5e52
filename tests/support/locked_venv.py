"""Virtual environments for tools of the tests that have no place in the project's own."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import WAIT_S

BUILD = Path(__file__).parents[2] / "build"


def make_locked_venv(locked: Path) -> Path:
    """The directory with the programs of a virtual environment that has what a lock file names, made once."""
    place = BUILD / f"{locked.parent.name}-venv"
    place.parent.mkdir(exist_ok=True)
    with place.with_suffix(".lock").open("w") as alone:  # pytest's workers may need it at the same time
        fcntl.flock(alone, fcntl.LOCK_EX)
        if not (place / ".installed").is_file() or (place / ".installed").read_bytes() != locked.read_bytes():
            subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
            install = [str(place / "bin" / "pip"), "install", "--quiet", "--require-hashes", "-r", str(locked)]
            subprocess.run(install, check=True, timeout=WAIT_S)
            (place / ".installed").write_bytes(locked.read_bytes())
    return place / "bin"
