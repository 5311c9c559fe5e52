"""Ctrl-C or SIGTERM at any moment of a long command leaves no process behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reliable_channel.config import Settings
from tests.e2e.demo_runs import ROOT, processes_of

pytestmark = [pytest.mark.e2e, pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

COMMANDS = {
    "run once": (["run", "--once", "--verdicts"], (0.3, 2.0, 4.0, 7.0)),
    "run continuously": (["run", "--continuous"], (8.0, 13.0)),  # until Spark runs it does what the other one does
    "rebuild": (["rebuild"], (5.0,)),  # with nothing to rebuild it ends when Spark runs
}
"""Command lines, and the seconds after which each is interrupted."""
ENDED_S = 90.0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_signal_at_any_moment_leaves_no_process(command: str, broker: Settings, tmp_path: Path) -> None:
    arguments, moments = COMMANDS[command]
    for number, moment in enumerate(moments):
        place = tmp_path / f"at-{number}"
        process = subprocess.Popen(
            [sys.executable, "-m", "reliable_channel", *arguments],
            cwd=ROOT,
            env={
                **os.environ,
                "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(place),
                "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": broker.kafka.servers,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        time.sleep(moment)
        process.send_signal(signal.SIGINT if number % 2 else signal.SIGTERM)
        output, _ = process.communicate(timeout=ENDED_S)
        assert "Traceback" not in output, (moment, output)
        assert processes_of(place) == [], moment
