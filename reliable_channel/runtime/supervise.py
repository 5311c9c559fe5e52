"""Runs a command that never outlives its parent: ``python -m reliable_channel.runtime.supervise PARENT_PID COMMAND…``.

Runs the command and ends it (SIGTERM, after ten seconds SIGKILL) when the parent dies in any way, detected by the end
of standard input, or on a stop signal. It is a separate small process, because a ``finally`` block does not run on
SIGKILL, and ``PR_SET_PDEATHSIG`` exists only on Linux and is tied to a thread.

Standard library only, so it starts in about 30 ms.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from types import FrameType

GRACE_S = 10.0


def main(arguments: list[str]) -> int:
    """Run ``arguments[1:]`` until it ends, a stop signal arrives, or the process ``arguments[0]`` is gone."""
    parent, command = int(arguments[0]), arguments[1:]
    stop = threading.Event()

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the parent, which decides
    if os.getppid() != parent:
        return 1
    # A separate session, so that Ctrl-C on the terminal does not kill the command before the parent decides.
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True) as child:

        def watch_parent() -> None:
            with contextlib.suppress(OSError):
                while os.read(0, 4096):
                    pass
            stop.set()

        def watch_child() -> None:
            child.wait()
            stop.set()

        for watch in (watch_parent, watch_child):
            threading.Thread(target=watch, daemon=True).start()
        stop.wait()
        child.terminate()
        try:
            return child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
