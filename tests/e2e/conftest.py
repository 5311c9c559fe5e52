"""What the process tests share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.demo_runs import DemoRun, interrupted, to_the_end

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as it would be published."""
    target = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(target), str(ROOT)], check=True, timeout=300)
    (built,) = target.glob("reliable_channel-*.whl")
    return built


@pytest.fixture(scope="session")
def py_files(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package as ``make dist`` builds it for ``spark-submit --py-files``."""
    copy = tmp_path_factory.mktemp("py-files") / "reliable_channel.zip"
    copy.write_bytes(wheel.read_bytes())
    return copy


@pytest.fixture(scope="session")
def demo_interrupted(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """The small demo, ended by Ctrl-C while its jobs run."""
    return interrupted(tmp_path_factory.mktemp("demo") / "run")


@pytest.fixture(scope="session")
def demo(demo_interrupted: DemoRun) -> DemoRun:
    """The small demo, run to its end in the directory that the interrupted run left."""
    return to_the_end(demo_interrupted.place)
