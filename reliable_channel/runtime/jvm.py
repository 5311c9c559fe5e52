"""Handles the JVM that PySpark starts as a process of its own: its output, its end, its exit code.

PySpark has no public interface for any of this. So its private attributes and the process's own file descriptors are
used here, and only here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def is_submitted() -> bool:
    """Whether ``spark-submit`` started this process; its JVM then exists already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


class _ToThisProcess:
    """A signal handler of the JVM that sends the signal to this process."""

    def handle(self, received: Any) -> None:
        os.kill(os.getpid(), received.getNumber())

    class Java:
        implements = ("sun.misc.SignalHandler",)


def forward_signals() -> None:
    """Let the JVM of ``spark-submit``, whose child this process is, forward SIGTERM, SIGINT and SIGHUP to it. Otherwise
    the JVM ends at once, within a micro-batch."""
    from pyspark import SparkContext
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
    signals = SparkContext._jvm.sun.misc.Signal  # type: ignore[union-attr]
    for name in ("TERM", "INT", "HUP"):
        signals.handle(signals(name), _ToThisProcess())


def jvm_exit_code() -> int | None:
    """Return the exit code of the JVM that this process started, if it has ended; waits briefly, since it may be
    ending."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    with suppress(subprocess.TimeoutExpired):
        return None if process is None else int(process.wait(timeout=0.5))
    return None


def leave_out_trace_of_killed_jvm() -> None:
    """Keep PySpark's accumulator server from printing a stack trace when the JVM is gone, because the command reports
    that."""
    from pyspark.accumulators import AccumulatorTCPServer, AccumulatorUnixServer

    # Changed in the classes, because PySpark makes the server itself, inside SparkContext, and has no setting for it.
    for server in (AccumulatorTCPServer, AccumulatorUnixServer):
        server.handle_error = lambda *_: None  # type: ignore[method-assign]  # the standard library's way to say more


def end_jvm() -> None:
    """End the JVM if this process started it."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if is_submitted() or gateway is None:
        return
    with suppress(Exception):
        gateway.shutdown()
    process = getattr(gateway, "proc", None)
    if process is not None:
        process.stdin.close()  # its gateway server ends at the end of its input
        with suppress(Exception):
            process.wait(timeout=20)
        if process.poll() is None:
            process.kill()
            process.wait(timeout=20)
    SparkContext._gateway = None
    SparkContext._jvm = None


@contextmanager
def stderr_to(log: Path) -> Iterator[None]:
    """Redirect this process's stderr to a file while the JVM starts: the JVM inherits it, then ours is restored.

    The JVM and Spark's scripts print warnings before they read any logging configuration; nobody can act on these.
    """
    sys.stderr.flush()
    kept = os.dup(2)  # the descriptor, not sys.stderr: PySpark starts the JVM and passes no stderr of its own
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(target, 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
        os.close(target)
