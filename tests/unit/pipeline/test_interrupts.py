"""A signal is noted inside the block, raised when asked for, and the former handlers come back."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.pipeline.runner import job as job_module
from reliable_channel.pipeline.runner.job import main as job
from reliable_channel.pipeline.runner.queries import ACK, INGEST, Query
from reliable_channel.runtime.interrupts import ENDING, RaiseIfInterrupted, note_interrupts, run_interruptibly
from reliable_channel.runtime.job import run_job
from tests.support.waiting import WAIT_S

ROOT = Path(__file__).parents[3]
JOBS = sorted((ROOT / "jobs").glob("*.py"))

pytestmark = pytest.mark.usefixtures("heed_hangups")


def end_by_signal(script: str, word: str, number: int, place: Path) -> tuple[int, str, str]:
    """Send a process a signal when it has printed ``word``; its exit code, and what it printed after that."""
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=place
    )
    assert process.stdout is not None
    assert process.stdout.readline() == f"{word}\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=WAIT_S)
    return process.returncode, out, err.strip()


@pytest.mark.parametrize(
    ("number", "raised"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_is_raised_when_asked_for(number: int, raised: type[BaseException]) -> None:
    before = signal.getsignal(number)
    steps = []
    with pytest.raises(raised), note_interrupts() as raise_if_interrupted:
        raise_if_interrupted()
        os.kill(os.getpid(), number)
        steps.append("the call that was going on has ended")
        raise_if_interrupted()
        steps.append("not reached")
    assert steps == ["the call that was going on has ended"]
    assert signal.getsignal(number) == before


def test_what_nobody_asked_for_is_raised_at_the_end() -> None:
    with pytest.raises(KeyboardInterrupt), note_interrupts():
        os.kill(os.getpid(), signal.SIGINT)


def test_another_error_is_not_hidden_by_a_signal() -> None:
    with pytest.raises(ValueError, match="mine"), note_interrupts():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError("mine")


def test_outside_the_main_thread_handlers_are_left_alone() -> None:
    found = []

    def work() -> None:
        with note_interrupts() as raise_if_interrupted:
            raise_if_interrupted()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]


def test_a_job_puts_the_handlers_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in ENDING]
    assert job(INGEST, ["--config", str(tmp_path / "missing.yaml")]) == 2
    assert "missing.yaml" in capsys.readouterr().err
    assert [signal.getsignal(number) for number in ENDING] == before


def test_ctrl_c_ends_a_job_without_a_trace(tmp_path: Path) -> None:
    script = (
        "import sys, time; from reliable_channel.runtime.job import run_job\n"
        "def work(_): print('works', flush=True); time.sleep(60)\n"
        "sys.exit(run_job('evidence', None, work))"
    )
    assert end_by_signal(script, "works", signal.SIGINT, tmp_path) == (130, "", "Stopped.")


SIGNALS = pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_ctrl_c_ends_a_job_that_is_still_imported_without_a_trace(path: Path, tmp_path: Path) -> None:
    script = (
        "import runpy, sys, time, reliable_channel.runtime.interrupts\n"
        "class Slow:\n"
        "    def find_spec(name, *_):\n"
        "        if name.startswith(('reliable_channel.', 'pyspark')):\n"
        "            print('importing', flush=True); time.sleep(60)\n"
        f"sys.meta_path.insert(0, Slow); sys.argv = ['job']; runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    assert end_by_signal(script, "importing", signal.SIGINT, tmp_path) == (130, "", "Stopped.")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)], ids=["SIGTERM", "SIGHUP"])
def test_a_signal_lets_a_job_undo_what_it_began(number: int, code: int, tmp_path: Path) -> None:
    """``maintain`` left its lease behind, and no other run could work for two hours; SIGHUP is that of a terminal which
    is closed."""
    script = (
        "import sys, time; from reliable_channel.runtime.job import run_job\n"
        "def work(_):\n"
        "    try: print('works', flush=True); time.sleep(60)\n"
        "    finally: print('undone')\n"
        "sys.exit(run_job('maintain', None, work))"
    )
    assert end_by_signal(script, "works", number, tmp_path) == (code, "undone\n", "")


def test_nohup_keeps_a_job_running_when_its_terminal_is_closed(tmp_path: Path) -> None:
    script = (
        "import signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup starts it\n"
        "from reliable_channel.runtime.interrupts import end_at_once, note_interrupts\n"
        "from reliable_channel.runtime.job import run_job\n"
        "def work(_):\n"
        "    with note_interrupts(), end_at_once():\n"
        "        print('works', flush=True); signal.sigtimedwait([signal.SIGUSR1], 0.5)\n"
        "    print('done')\n"
        "sys.exit(run_job('maintain', None, work))"
    )
    assert end_by_signal(script, "works", signal.SIGHUP, tmp_path) == (0, "done\n", "")


def test_a_server_ends_in_order_when_its_terminal_is_closed(tmp_path: Path) -> None:
    script = (
        "import sys; from reliable_channel.runtime.faults import run_to_exit_code\n"
        "from reliable_channel.transport.http.server import HttpServer, listen\n"
        "async def app(scope, receive, send):\n"
        "    await receive(); print('starts', flush=True); await send({'type': 'lifespan.startup.complete'})\n"
        "    await receive(); print('ends', flush=True); await send({'type': 'lifespan.shutdown.complete'})\n"
        "def serve():\n"
        "    with listen('127.0.0.1', 0) as sock: HttpServer(app, lifespan='on').run(sockets=[sock])\n"
        "sys.exit(run_to_exit_code(serve, 'server'))"
    )
    assert end_by_signal(script, "starts", signal.SIGHUP, tmp_path) == (129, "ends\n", "")


@SIGNALS
@pytest.mark.parametrize("mode", ["--once", "--continuous"])
def test_a_signal_ends_refetch_although_stores_do_not_answer(mode: str, number: int, code: int, tmp_path: Path) -> None:
    script = (
        "import runpy, sys, time\n"
        "from reliable_channel.evidence import refetch; from reliable_channel.runtime import own_broker\n"
        "def wait(*_): print('asking', flush=True); time.sleep(60)\n"
        "refetch.refetch_once, own_broker.check_kafka = wait, lambda _: None\n"
        f"sys.argv = ['refetch', {mode!r}]; runpy.run_path({str(ROOT / 'jobs' / 'refetch.py')!r}, run_name='__main__')"
    )
    expected = (0, "", "") if mode == "--continuous" else (code, "", "Stopped." if code == 130 else "")
    assert end_by_signal(script, "asking", number, tmp_path) == expected


def test_a_signal_ends_a_job_that_processes_what_is_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With ``--once``; it went on to the end of a backlog of hours."""
    ended = []

    def run_to_end(_spark: object, _settings: Settings, query: Query, raise_if_interrupted: RaiseIfInterrupted) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        ended.append(query)
        raise_if_interrupted()
        ended.append("not reached")

    for name in ("spark_session", "record_metrics"):
        monkeypatch.setattr(job_module, name, lambda *_, **__: nullcontext())
    monkeypatch.setattr(job_module, "run_to_end", run_to_end)
    assert job(ACK, ["--once"]) == 130
    assert ended == [ACK]
    assert capsys.readouterr().err == "\nStopped.\n"


def test_a_job_prints_its_own_warnings_and_none_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    """py4j logs one for each call into a JVM that was killed, the Kafka client for each try while a broker is away."""

    def work(_: Settings) -> None:
        logging.getLogger("reliable_channel.x").warning("ours")
        logging.getLogger("py4j").error("Exception while sending command.")
        logging.getLogger("kafka.net.manager").error("Connection failed")
        raise EnvironmentFault("It failed.", "Do this.")

    assert run_job("ack", None, work) == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(" WARNING ours")
    assert second == "ack: It failed. Do this."


@SIGNALS
def test_while_the_command_line_is_imported_a_signal_ends_the_process_without_an_exception(
    number: int, code: int, tmp_path: Path
) -> None:
    script = (
        "import builtins, time; real = builtins.__import__\n"
        "def wait(name, *rest):\n"
        "    if name == 'typer':\n"
        "        print('importing', flush=True); time.sleep(60)\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = wait\n"
        "from reliable_channel.cli import main; main(['status'])"
    )
    assert end_by_signal(script, "importing", number, tmp_path) == (code, "", "Stopped." if code == 130 else "")


@SIGNALS
def test_while_settings_are_read_a_signal_ends_the_process_without_an_exception(
    number: int, code: int, tmp_path: Path
) -> None:
    # The loop stands for an import that swallows what is raised in it, as the configuration's library does.
    script = (
        "import time, reliable_channel.config as config\n"
        "def load(_path):\n"
        "    print('reading', flush=True)\n"
        "    while True:\n"
        "        try: time.sleep(1)\n"
        "        except BaseException as error: print(repr(error), flush=True)\n"
        "config.load = load\n"
        "from reliable_channel.cli import main; main(['status'])"
    )
    assert end_by_signal(script, "reading", number, tmp_path) == (code, "", "Stopped." if code == 130 else "")


def test_a_signal_while_a_call_begins_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """As DuckDB, the call hears nothing of an interrupt that comes before it waits for one. A connection was closed
    while its query still ran ("connection is busy with another call")."""
    began, stop, ended = threading.Event(), threading.Event(), threading.Event()
    interrupts = []
    real_start = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        real_start(thread)
        assert began.wait(WAIT_S)
        raise SystemExit(143)  # what a signal's handler raises in the main thread, which waits for the new one

    def call() -> None:
        began.set()
        assert stop.wait(WAIT_S)
        ended.set()

    def interrupt() -> None:
        interrupts.append("one")
        if len(interrupts) > 1:
            stop.set()

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(SystemExit):
        run_interruptibly(call, interrupt)
    assert ended.is_set()
