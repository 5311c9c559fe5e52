"""Sets up what commands and jobs log, and limits the Kafka client's messages: while a broker does not answer, the
client repeats itself several times a second.

Our own faults and health events report that it is unreachable and that it is back. The client's messages help to see
why, so with ``--debug`` the first of each kind is shown, then one per minute with the number of suppressed ones.
"""

from __future__ import annotations

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from reliable_channel.core.printable import escape_unprintable

INTERVAL_S = 60.0
MAX_KINDS = 1_000


class OncePerInterval(logging.Filter):
    """Passes one record of each kind (logger, level, text before formatting) per ``interval_s`` (seconds)."""

    def __init__(self, interval_s: float = INTERVAL_S) -> None:
        super().__init__()
        self._interval_s = interval_s
        self._last: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to show a message; a shown one states how many were suppressed before it."""
        kind = (record.name, record.levelno, str(record.msg))
        shown_at, left_out = self._last.get(kind, (None, 0))
        if shown_at is not None and record.created - shown_at < self._interval_s:
            self._last[kind] = shown_at, left_out + 1
            return False
        if len(self._last) >= MAX_KINDS:
            self._last.clear()
        self._last[kind] = record.created, 0
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out} times before)", None
        return True


class _ToStandardError(logging.StreamHandler[TextIO]):
    """Writes to the current standard error, which may have been replaced since the handler was created."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]  # the library's own last resort does the same
        return sys.stderr


class _OneLine(logging.Formatter):
    """One line for a record, whatever strangers wrote into its text; the lines of a traceback are indented, so that
    none can look like a record."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return escape_unprintable(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return "  " + escape_unprintable(super().formatException(ei), kept="\n").replace("\n", "\n  ")


def show_logs(debug: bool) -> None:
    """Show warnings and errors of this package on standard error, each with its time (UTC), since an operator needs to
    know when something happened; of libraries, what :func:`tame_kafka` leaves of the Kafka client, only if ``debug``:
    commands and jobs report in their own words what happened. Calling it twice has no effect.

    A program that uses this package as a library keeps its own logging: only commands and jobs call this."""
    formatter = _OneLine("%(asctime)s.%(msecs)03dZ %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    _show("reliable_channel", formatter)
    # Of kafka-python, which reads its schemas so: with PYTHONWARNINGS=error, nothing of Kafka could be imported.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    root = logging.getLogger()
    if debug:
        tame_kafka()
    elif not root.handlers:
        root.addHandler(logging.NullHandler())  # without a handler, Python writes warnings to standard error itself


def tame_kafka() -> None:
    """Show warnings and errors of the Kafka client on standard error, each kind once a minute, but not that the client
    was slow or cancelled a request. Calling it twice has no effect."""
    _show("kafka", _OneLine("%(name)s: %(message)s"), _is_fault, OncePerInterval())


def _is_fault(record: logging.LogRecord) -> bool:
    # The client suspects a fault of the program in each of its steps that takes 0.1 s; a busy machine has many.
    if record.name == "kafka.net.selector" and record.levelno <= logging.WARNING:
        return False
    # A connection that the client itself closes fails its open requests with this error. Compared by name, because most
    # commands need no Kafka client.
    args = record.args if isinstance(record.args, tuple) else ()
    return not any(type(each).__name__ == "Cancelled" for each in args)


def _show(
    name: str, formatter: logging.Formatter, *filters: logging.Filter | Callable[[logging.LogRecord], bool]
) -> None:
    logger = logging.getLogger(name)
    if any(isinstance(handler, _ToStandardError) for handler in logger.handlers):
        return
    handler = _ToStandardError()
    handler.setLevel(logging.WARNING)
    handler.setFormatter(formatter)
    for each in filters:
        handler.addFilter(each)
    logger.addHandler(handler)
    logger.propagate = False


@contextmanager
def quiet_kafka_client() -> Iterator[None]:
    """Suppress the Kafka client's log messages during a short exchange whose outcome the caller reports itself."""
    logger = logging.getLogger("kafka")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)
