"""Prints the error that ends a command or a job: one sentence with the cause, one with the remedy.

A stack trace is shown on request (``--debug``, or ``RELIABLE_CHANNEL_DEBUG=1``, also for jobs). An unforeseen error is
also one line, which states how to see the rest. docs/errors.md lists the errors that a new user may meet.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import FrameType
from typing import NoReturn

from reliable_channel.core.errors import EnvironmentFault, LocalError, ReliableChannelError
from reliable_channel.core.printable import escape_unprintable
from reliable_channel.runtime.interrupts import handle_signals

UNFORESEEN = 70
"""Exit code of an unforeseen error (``EX_SOFTWARE``)."""

_DELTA_RS = frozenset({"_internal", "deltalake"})
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EROFS, errno.EPERM}
_STORE = re.compile(r"AWS Error|Kernel error -> |Generic \w+ error: |error sending request")
"""Matches errors of Arrow and delta-rs that come from an object store."""
_DISK = re.compile(r"Failed to open local file|Generic LocalFileSystem error")
"""Matches their errors that come from a disk, some of which do not say why."""
_OPTIONAL = frozenset(
    {"pyspark", "delta", "pandas", "pyarrow", "deltalake", "duckdb", "jinja2", "altair", "vl_convert"}
    | {"fastapi", "starlette", "uvicorn", "prometheus_client"}
)
"""Packages that this package's extras install (pyproject.toml)."""
_LONGEST = 300
_ANOTHER_PLACE = "Choose another place with an option or paths.* in the configuration"


def is_debugging() -> bool:
    """Whether the environment asks for stack traces."""
    return os.environ.get("RELIABLE_CHANNEL_DEBUG", "").lower() in {"1", "true", "yes"}


def print_fault(error: Exception, program: str, debug: bool | None = None) -> int:
    """Print an error as ``program: cause remedy`` on standard error; returns the exit code.

    1: a fault of this machine or of a peer; 2: wrong usage or configuration; 70: an unforeseen error."""
    if is_debugging() if debug is None else debug:
        sys.stderr.write(escape_unprintable("".join(traceback.format_exception(error)), kept="\n"))
    fault = as_fault(error)
    sys.stderr.write(f"{program}: {escape_unprintable(str(fault))}\n")
    if isinstance(fault, LocalError):
        return 2
    return UNFORESEEN if isinstance(fault, Unforeseen) else 1


def run_to_exit_code(work: Callable[[], object], program: str, debug: bool | None = None) -> int:
    """Call ``work``, and return the exit code: 0 done, 130 ended by Ctrl-C, otherwise that of :func:`print_fault`.

    In the main thread SIGTERM raises ``SystemExit(143)``, and SIGHUP ``SystemExit(129)``, so that ``finally`` blocks
    undo what was begun."""
    try:
        with handle_signals(_exit_by_signal, [signal.SIGTERM, signal.SIGHUP]):
            work()
    except KeyboardInterrupt:
        sys.stderr.write("\nStopped.\n")
        return 130
    except Exception as error:  # whatever it is, a person gets one sentence
        return print_fault(error, program, debug)
    return 0


def _exit_by_signal(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


class Unforeseen(ReliableChannelError):
    """An error without a specific message."""


def as_fault(error: Exception) -> ReliableChannelError:
    """Convert any error to a ``ReliableChannelError``, which has a cause and a remedy."""
    if isinstance(error, ReliableChannelError):
        return error
    if isinstance(error, OSError) and (fault := _explain_system_error(error)) is not None:
        return fault
    text = text_of(error)
    if (fault := _explain_environment(error, text)) is not None:
        return fault
    by_disk = isinstance(error, OSError) and _DISK.search(text) is not None  # it names no file but in its text
    if isinstance(error, OSError) and not by_disk and _STORE.search(text):
        said = _shorten(_take_first_line(error))
        return EnvironmentFault(
            f"The object store of the tables or checkpoints refused a request or did not answer: {said}.",
            "Check the endpoint, the bucket and the credentials (docs/scale-out.md, Object stores).",
        )
    if isinstance(error, ModuleNotFoundError) and (missing := (error.name or "").partition(".")[0]) in _OPTIONAL:
        return EnvironmentFault(
            f"The Python package {missing} is not installed.",
            "Install what this needs: pip install 'reliable-channel[all]'; or [report] to look at tables, [api] to "
            "serve, [pipeline] to run jobs.",
        )
    module = type(error).__module__.partition(".")[0]
    # A class of a missing jar is a TypeError in Python: 'JavaPackage' object is not callable.
    if by_disk or module in {"pyspark", "py4j", *_DELTA_RS} or "JavaPackage" in text:
        from reliable_channel.runtime.failures import explain_known_error, last_exception

        who = "Writing a table" if by_disk or module in _DELTA_RS else "Spark"
        if (fault := explain_known_error(who, text)) is not None:
            return fault
        if by_disk:
            return EnvironmentFault(
                f"The disk of the tables refused a request: {_shorten(_take_first_line(error))}.",
                "Check whether it is full, and whether its files may be read and written.",
            )
        if module not in _DELTA_RS:
            return _describe_unforeseen(error, last_exception(text))
    if type(error).__name__ == "CommitFailedError":
        return EnvironmentFault(
            "Another writer changed a table at the same time.",
            "Start it again: it writes what is still missing.",
        )
    if module in _DELTA_RS:
        return EnvironmentFault(
            f"A Delta table cannot be read: {_shorten(_take_first_line(error))}.",
            "Check whether its _delta_log is complete; `reliable-channel rebuild` derives the tables again.",
        )
    return _describe_unforeseen(error, _take_first_line(error))


def _explain_environment(error: Exception, text: str) -> ReliableChannelError | None:
    """Convert an error that variables of the environment cause, whatever fails first."""
    if isinstance(error, RuntimeError) and "home directory" in text:  # of pathlib
        return EnvironmentFault(
            "A home directory is unknown: yours, or that of a path with ~.",
            "Set HOME (or XDG_CACHE_HOME), or write the path without ~.",
        )
    used = getattr(sys.modules.get("pyspark"), "__version__", None)
    with suppress(PackageNotFoundError):  # as on a cluster, which brings its own
        if used is not None and used != (installed := version("pyspark")):
            return EnvironmentFault(
                f"PySpark is {used}, not {installed}, which is installed here.",
                "Unset PYTHONPATH and SPARK_HOME, which name another installation of Spark.",
            )
    return None


def _describe_unforeseen(error: Exception, text: str) -> Unforeseen:
    return Unforeseen(
        f"This should not have happened: {type(error).__name__}: {_shorten(text)}.",
        "Run it again with RELIABLE_CHANNEL_DEBUG=1 to see where, and report what it prints.",
    )


def _explain_system_error(error: OSError) -> ReliableChannelError | None:
    """Convert an operating system's error if a clearer message than its own exists."""
    name = error.filename if isinstance(error.filename, str) else None
    if error.errno in _DISK_FULL:
        name = error.filename2 if isinstance(error.filename2, str) else name  # what a file is copied to
        where = f" writing {name}" if name else ""
        return EnvironmentFault(f"The disk is full{where}.", f"Free some space, or {_ANOTHER_PLACE.lower()}.")
    if name is None:
        try:
            Path.cwd()
        except OSError:
            return LocalError("The current directory was removed.", "Change to another one.")
        return None
    if error.errno in _FORBIDDEN:
        return EnvironmentFault(f"No permission to use {name}.", f"{_ANOTHER_PLACE}, or change its permissions.")
    if error.errno == errno.ENOENT:
        return LocalError(f"{name} does not exist.", "Check the path.")
    if error.errno == errno.ENOTDIR:
        return LocalError(f"{name} lies under a file, not under a directory.", f"{_ANOTHER_PLACE}.")
    if error.errno == errno.EEXIST:  # of mkdir: nothing else here demands that a file is not there yet
        return LocalError(f"{name} is a file, not a directory.", f"{_ANOTHER_PLACE}.")
    if error.errno == errno.ENAMETOOLONG:
        return LocalError(f"{_shorten(name)} is longer than a path may be.", "Name a shorter one.")
    if error.errno == errno.EISDIR:
        return LocalError(f"{name} is a directory.", "Name a file.")
    return None


def text_of(error: Exception) -> str:
    """Return ``str(error)``; for a Java error whose JVM has ended, and its text with it, return what Python knows of
    it."""
    try:
        return str(error)
    except Exception:  # py4j asks the JVM for the text, and fails in many ways when it is gone
        return str(next((arg for arg in error.args if isinstance(arg, str)), type(error).__name__))


def _take_first_line(error: Exception) -> str:
    return (text_of(error).strip().splitlines() or ["no more is known"])[0]


def _shorten(text: str) -> str:
    return (text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…").rstrip(".")
