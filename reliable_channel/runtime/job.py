"""What all jobs in ``jobs/`` share: the option ``--config``, and how they end."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from reliable_channel.config import Settings, load
from reliable_channel.runtime.faults import is_debugging, run_to_exit_code
from reliable_channel.runtime.interrupts import end_at_once
from reliable_channel.runtime.logs import show_logs


def make_parser(name: str, about: str | None = None) -> argparse.ArgumentParser:
    """A parser for the arguments of ``jobs/<name>.py``."""
    parser = argparse.ArgumentParser(prog=f"jobs/{name}.py", description=about)
    parser.add_argument("--config", help="a YAML file, or the name of one in conf/")
    return parser


def add_modes(parser: argparse.ArgumentParser) -> None:
    """Add ``--once`` and ``--continuous``."""
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--once", action="store_true", help="what is there now, then end (the default)")
    mode.add_argument("--continuous", action="store_true", help="until SIGTERM or Ctrl-C")


def run_job(name: str, config: str | None, work: Callable[[Settings], object]) -> int:
    """Call ``work`` with the settings; returns the exit code as :func:`run_to_exit_code` does."""
    show_logs(is_debugging())

    def run() -> None:
        with end_at_once():
            settings = load(config)
        work(settings)

    return run_to_exit_code(run, name)
