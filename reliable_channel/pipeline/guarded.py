"""Catches a fault of a state machine on one row, sets the row aside, and goes on with the next one.

Rows come from strangers, and a row on which the program fails would fail again at every start of the query. Such a row
is reported in ``channel_events`` with its record's coordinates, and the machine goes on with the state it had before
the row. The record itself stays in the tables, so a rebuild with a mended program takes it as any other.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple, Protocol, TypeVar

_log = logging.getLogger(__name__)

EVENT = "row_failed"
"""The name of the event in ``channel_events``."""

LONGEST_REASON = 300


class FailedRows(NamedTuple):
    """How many rows of a key were set aside; the driver counts them."""

    rows: int


class Machine(Protocol):
    """What holds the state that rows change."""

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to store."""

    def to_bytes(self) -> bytes:
        """The state, to be restored from."""


M = TypeVar("M", bound=Machine)
Row = TypeVar("Row")
Output = TypeVar("Output")
Returned = TypeVar("Returned")


def taken(
    machine: M,
    restore: Callable[[bytes | None], M],
    rows: Iterable[Row],
    take: Callable[[M, Row], Iterable[Output]],
    event: Callable[[M, Row, Exception], Output],
) -> Generator[Output, None, tuple[M, list[int]]]:
    """Let a key's machine take its rows of a micro-batch, in record order. Yields what they lead to; returns the
    machine after them, and which of them, by their place in ``rows``, were set aside.

    ``restore`` makes a machine of stored bytes, or of ``None`` the one with which the micro-batch begins, as
    ``machine`` is. ``take`` lets it take a row; ``event`` is the output for a row that fails.

    Nothing is paid while no row fails. When one does, the state may be half changed: the machine is made anew and the
    rows since the last stored bytes are taken again, which gives the same state. The bytes are then stored anew, so
    that many failing rows do not repeat the same work many times."""
    since: list[Row] = []
    failed: list[int] = []
    state: bytes | None = None
    for number, row in enumerate(rows):
        try:
            outputs = take(machine, row)
        except MemoryError:  # says nothing about the row
            raise
        except Exception as error:
            _log.warning("a row was set aside: %s", kind_of(error))
            machine = restore(state)
            for good in since:
                take(machine, good)
            if not machine.is_blank:
                state, since = machine.to_bytes(), []
            yield event(machine, row, error)
            failed.append(number)
        else:
            since.append(row)
            yield from outputs
    return machine, failed


def collected(steps: Generator[Output, None, Returned]) -> tuple[list[Output], Returned]:
    """Everything that a generator yields, and what it returns."""
    outputs: list[Output] = []
    while True:
        try:
            outputs.append(next(steps))
        except StopIteration as end:
            return outputs, end.value


def kind_of(error: Exception) -> str:
    """The class of an error and where it was raised. Without its text, which may hold a payload."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {frame.name}, line {frame.lineno}" for frame in last)
    return f"{type(error).__name__}{where}"


def reason_of(error: Exception) -> str:
    """:func:`kind_of` and the text of an error, for a job that holds no payloads: printable, bounded, for people."""
    return f"{kind_of(error)}: {ascii(str(error))[1:-1]}"[:LONGEST_REASON]
