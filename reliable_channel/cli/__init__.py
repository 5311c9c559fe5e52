"""The console script ``reliable-channel``."""

from __future__ import annotations

import gc
from typing import NoReturn

from reliable_channel.runtime.interrupts import end_at_once

YOUNG_OBJECTS = 50_000
"""After how many new objects Python looks for garbage among them, in place of 700: imports make many and no garbage."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command line (``sys.argv`` by default) and exit; never shows a stack trace unless ``--debug``."""
    threshold, *older = gc.get_threshold()
    gc.set_threshold(YOUNG_OBJECTS, *older)
    try:
        with end_at_once():  # the import takes most of the time before the command itself runs
            from reliable_channel.cli.app import run
        run(arguments)
    finally:
        gc.set_threshold(threshold, *older)  # for who calls this from Python
