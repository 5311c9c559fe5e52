"""The wheel works without the checkout: console script, generated code, what is shipped with it; and in an environment
of its own: a participant without extras, and a demo with all of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.delta_tables import read_table
from tests.support.venvs import make_venv

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


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
    shown = run(installed, sys.executable, "-m", "reliable_channel", "--config", "cluster", "config", "show")
    assert "kafka-1:9093" in shown


def test_the_list_of_jars_is_shipped_and_leads_to_the_same_cache(installed: Path) -> None:
    assert "Jars verified in" in run(installed, sys.executable, "-m", "reliable_channel", "setup")


def test_the_same_files_make_the_same_wheel_at_another_time_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    for name in ("reliable_channel", "conf", "jobs", "notebooks"):
        shutil.copytree(ROOT / name, copy / name, copy_function=shutil.copyfile)  # with other times
    for file in (*ROOT.glob("LICENSE*"), ROOT / "README.md", ROOT / "pyproject.toml", ROOT / ".gitignore"):
        shutil.copyfile(file, copy / file.name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(copy)], check=True, timeout=300)
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_jobs_the_notebooks_and_the_board_are_shipped(installed: Path, tmp_path: Path) -> None:
    ours = [sys.executable, "-m", "reliable_channel"]
    for arguments in (("files", "ingest.py"), ("files", "grafana-dashboard.json")):
        place = Path(run(installed, *ours, *arguments).strip())
        assert place.is_file() and place.is_relative_to(installed)
    copied = run(installed, *ours, "notebooks", str(tmp_path / "mine")).splitlines()
    assert {Path(line).name for line in copied} == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert run(installed, *ours, "notebooks", str(tmp_path / "mine")) == "", "what is there is left alone"


def make_clean_venv(place: Path, requirement: str) -> Path:
    """The ``bin`` of a new environment with this, and all else in the versions that are locked."""
    pins = "\n".join(
        line.removesuffix(" \\")
        for line in (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
        if "==" in line and not line.startswith((" ", "#"))
    )
    file = place.with_suffix(".pins")
    file.write_text(pins, encoding="utf-8")
    return make_venv(place, "-c", str(file), requirement)


def size_mb(place: Path) -> float:
    """What an environment takes on the disk, without the byte code that Python writes when it runs."""
    files = (path for path in place.rglob("*") if path.is_file() and not path.is_symlink() and path.suffix != ".pyc")
    return sum(path.stat().st_size for path in files) / 1e6


TALK = """
from reliable_channel.channel import MessageReceived, create_reliable_channel
from reliable_channel.transport.memory import MemoryNetwork

network = MemoryNetwork()
topic, channels = "/reliable-channel/1/lobby/proto", []
for name in ("alice", "bob"):
    node = network.node(name)
    node.start()
    channels.append(create_reliable_channel(node, "lobby", topic, name, clock=network.clock, threaded=False))
alice, bob = channels
bob.on(MessageReceived, lambda event: print(len(event.message)))
alice.send(b"x" * 300_000)
for _ in range(20):
    alice.step()
    network.run(100)
    bob.step()
alice.close()
bob.close()
"""


@pytest.mark.slow
def test_a_participant_needs_no_extras_and_at_most_120_mb(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "core"
    programs = make_clean_venv(place, str(wheel))
    environment = {"PATH": str(programs), "HOME": str(tmp_path)}
    assert size_mb(place) <= 120  # numpy is half of it

    def asked(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )

    said = asked(str(programs / "python"), "-c", TALK)
    assert said.stdout == "300000\n", said.stderr
    assert asked(str(programs / "reliable-channel"), "--help").returncode == 0
    refused = asked(str(programs / "reliable-channel"), "report")
    assert refused.returncode == 1 and "pip install 'reliable-channel[all]'" in refused.stderr


@pytest.mark.slow
def test_with_all_extras_the_demo_runs_in_another_folder(wheel: Path, tmp_path: Path) -> None:
    """It is ``demo --slow``: senders who are away or wait for epochs, for whom nothing else starts whole processes."""
    programs = make_clean_venv(tmp_path / "all", f"reliable-channel[all] @ {wheel.as_uri()}")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}} | {
        "PATH": f"{programs}:{os.environ['PATH']}"
    }
    done = subprocess.run(
        [str(programs / "reliable-channel"), "demo", "--slow"],
        env=environment, cwd=elsewhere, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert "The tables match the truth exactly." in done.stdout
    tables = elsewhere / "build" / "demo-slow" / "tables"
    assert {*read_table(tables, "incomplete_messages", ["status"])["status"].to_pylist()} == {"overdue", "given_up"}
    verdicts = read_table(tables, "delivery_status", ["verdict", "cause"]).to_pylist()
    assert {"verdict": "delivered", "cause": "late"} in verdicts
    assert {"verdict": "missing", "cause": "segment_missing"} in verdicts
    report = subprocess.run(
        [str(programs / "reliable-channel"), "report", "--tables", str(tables), "--html", "report.html"],
        env=environment, cwd=elsewhere, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert report.returncode == 0, report.stderr
    assert (elsewhere / "report.html").stat().st_size > 100_000
