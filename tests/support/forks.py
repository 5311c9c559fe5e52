"""Runs a function in a forked process."""

from __future__ import annotations

import os
from collections.abc import Callable


def fork(child: Callable[[], None]) -> tuple[int, int]:
    """Run ``child`` in a forked process that lives until the returned descriptor is closed; returns its id too, once
    ``child`` has ended. It exits with 0 if ``child`` raised nothing."""
    wait, end = os.pipe()
    done, ended = os.pipe()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(end)
            child()
            code = 0
        finally:
            os.write(ended, b".")
            os.read(wait, 1)
            os._exit(code)
    os.close(wait)
    os.close(ended)
    os.read(done, 1)
    os.close(done)
    return pid, end
