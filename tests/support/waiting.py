"""Wait for what another thread or process does."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

WAIT_S = 900.0
"""How long tests wait before they fail, in seconds. Only a failure reaches it: a busy machine must not."""


def until(
    condition: Callable[[], object],
    what: str | Callable[[], str] = "it did not happen",
    *,
    process: subprocess.Popen[str] | None = None,
    every_s: float = 0.01,
) -> None:
    """Wait until ``condition`` is true, and fail with ``what`` after ``WAIT_S``.

    ``process`` must live meanwhile: if it ends, fail with what it printed. ``every_s``: seconds between two looks;
    more where a look takes long, since what is waited for needs the processor.
    """
    looked = time.monotonic()
    end = looked + WAIT_S
    while not condition():
        assert process is None or process.poll() is None, process.communicate()[0]
        now = time.monotonic()
        assert now < end, what() if callable(what) else what
        time.sleep(max(every_s, min(1.0, 5 * (now - looked))))
        looked = time.monotonic()
