"""``make setup`` on machines where something is missing: one sentence with cause and remedy, nothing half done."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A directory to be the whole ``PATH``, with what ``make`` and the script themselves need."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "dirname", "make"):
        found = shutil.which(name)
        assert found is not None
        (tools / name).symlink_to(found)
    return tools


def with_python(machine: Path) -> None:
    # A script, not a link: the interpreter of a virtual environment finds its base by its own path.
    (machine / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', encoding="utf-8")
    (machine / "python3").chmod(0o755)


def with_java(machine: Path, version: str) -> None:
    (machine / "java").write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n", encoding="utf-8")
    (machine / "java").chmod(0o755)


def setup(machine: Path, **environment: str) -> tuple[int, str]:
    """Run ``make setup`` there; exit code and standard error without make's own last line."""
    kept = {key: value for key, value in os.environ.items() if key not in {"JAVA_HOME", "PYTHON", "MAKEFLAGS"}}
    done = subprocess.run(
        ["make", "--no-print-directory", "setup"],
        cwd=ROOT,
        env=kept | {"PATH": str(machine), "RELIABLE_CHANNEL_VENV": str(machine.parent / "venv")} | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    lines = [line for line in done.stderr.splitlines() if not re.match(r"make(\[\d+\])?: ", line)]
    return done.returncode, "\n".join(lines)


def test_no_python(machine: Path) -> None:
    status, said = setup(machine)
    assert status != 0
    assert re.fullmatch(r"setup: No Python 3\.11 or newer was found\. Install python3\.11 .*", said)


def test_a_python_that_is_too_old(machine: Path) -> None:
    (machine / "python3").write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")  # what the version check exits with
    (machine / "python3").chmod(0o755)
    assert "No Python 3.11 or newer was found." in setup(machine)[1]


def test_a_named_python_that_does_not_fit(machine: Path) -> None:
    with_python(machine)
    assert setup(machine, PYTHON="/nowhere/python")[1].startswith("setup: PYTHON=/nowhere/python is not Python 3.11")


def test_no_java(machine: Path) -> None:
    with_python(machine)
    status, said = setup(machine)
    assert status != 0
    assert re.fullmatch(r"setup: Java was not found\. Install a Java 17 runtime .*", said)
    assert not (machine.parent / "venv").exists()  # told before anything is downloaded


def test_a_java_that_is_too_old(machine: Path) -> None:
    with_python(machine)
    with_java(machine, "11.0.2")
    assert re.fullmatch(r"setup: .*/java is Java 11, too old for Spark and Kafka\. Install .*", setup(machine)[1])


def test_a_path_with_a_colon(machine: Path) -> None:
    with_python(machine)
    with_java(machine, "17.0.1")
    said = setup(machine, RELIABLE_CHANNEL_VENV=str(machine / "12:30" / ".venv"))[1]
    assert said.splitlines()[-1].startswith("setup: No virtual environment can be in ")


@pytest.mark.parametrize("user", ["0", "1"], ids=["", "and pip installs for the user"])
def test_a_registry_that_cannot_be_reached(machine: Path, user: str) -> None:
    with_python(machine)
    with_java(machine, "17.0.1")
    registry = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": "", "PIP_RETRIES": "0"}
    status, said = setup(machine, **registry, PIP_USER=user)
    assert status != 0
    assert said.splitlines()[-1].startswith("setup: The Python package registry cannot be reached. Check network")
    assert "Traceback" not in said
