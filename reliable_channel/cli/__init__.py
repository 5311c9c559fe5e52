"""The console script ``reliable-channel``."""

from __future__ import annotations

from typing import NoReturn

from reliable_channel.runtime.interrupts import end_at_once


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command line (``sys.argv`` by default) and exit; never shows a stack trace unless ``--debug``."""
    with end_at_once():  # the import takes most of the time before the command itself runs
        from reliable_channel.cli.app import run
    run(arguments)
