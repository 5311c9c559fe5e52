"""The wheel works without the checkout: console script, generated code, shipped configuration and jar list."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the installed wheel; its dependencies are those of this environment."""
    target = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True, timeout=300)
    return target


def run(installed: Path, *command: str) -> str:
    """Standard output of a command that sees the installed package first, far from the checkout."""
    environment = os.environ | {"PYTHONPATH": str(installed)}
    done = subprocess.run(
        command, env=environment, cwd=installed, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_console_script_runs(installed: Path) -> None:
    assert run(installed, str(installed / "bin" / "reliable-channel"), "--version").startswith("reliable-channel ")


def test_it_is_really_the_installed_package(installed: Path) -> None:
    code = "import reliable_channel.core.wire._pb.sds_pb2 as generated; print(generated.__file__)"
    assert run(installed, sys.executable, "-c", code).startswith(str(installed))


def test_the_configuration_is_shipped(installed: Path) -> None:
    shown = run(installed, sys.executable, "-m", "reliable_channel.cli", "--config", "cluster", "config", "show")
    assert "kafka-1:9093" in shown


def test_the_list_of_jars_is_shipped_and_leads_to_the_same_cache(installed: Path) -> None:
    assert "Jars verified in" in run(installed, sys.executable, "-m", "reliable_channel.cli", "setup")
