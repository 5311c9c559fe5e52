"""Virtual environments of the tests' own, beside the project's."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import WAIT_S

BUILD = Path(__file__).parents[2] / "build"


def make_venv(place: Path, *arguments: str) -> Path:
    """Make a virtual environment with what ``pip install`` installs for ``arguments``, and return the directory of its
    programs. It has no pip of its own, which takes as long to install as many a package."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(place)], check=True)
    command = [sys.executable, "-m", "pip", "--python", str(place), "install", "--quiet", "--no-compile"]
    subprocess.run([*command, *arguments], check=True, timeout=WAIT_S)
    return place / "bin"


def make_locked_venv(locked: Path) -> Path:
    """The same for what a lock file names, made once in ``build/``."""
    place = BUILD / f"{locked.parent.name}-venv"
    place.parent.mkdir(exist_ok=True)
    with place.with_suffix(".lock").open("w") as alone:  # pytest's workers may need it at the same time
        fcntl.flock(alone, fcntl.LOCK_EX)
        if not (place / ".installed").is_file() or (place / ".installed").read_bytes() != locked.read_bytes():
            make_venv(place, "--require-hashes", "-r", str(locked))
            (place / ".installed").write_bytes(locked.read_bytes())
    return place / "bin"
