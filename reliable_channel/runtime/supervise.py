"""Runs a command that never outlives its parent: ``python -m reliable_channel.runtime.supervise PARENT_PID COMMAND…``.

Runs the command; ends it (SIGTERM, after ten seconds SIGKILL) when the parent dies in whatever way, which shows as the
end of our standard input, or on a signal to stop. A small process of its own, because a ``finally`` block does
not run on SIGKILL and a flag like ``PR_SET_PDEATHSIG`` is Linux's alone and tied to a thread.

Standard library only: it starts in some 30 ms.
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
    """Run ``arguments[1:]`` until it ends, a signal to stop comes, or the process ``arguments[0]`` is gone."""
    parent, command = int(arguments[0]), arguments[1:]
    stop = threading.Event()

    def on_signal(_signal: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, who decides
    if os.getppid() != parent:
        return 1
    # A session of its own: Ctrl-C on the terminal must not kill it behind the parent's back.
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
