"""Catches an exception of a state machine on one row, sets the row aside, and continues with the next one.

Anyone can send rows, and a row on which the program fails would fail again at every start of the query. Such a row is
reported in ``channel_events`` with its record's coordinates, and the machine continues with the state it had before the
row. The record itself stays in the tables, so a rebuild with a fixed program processes it like any other.
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
    """The number of rows of a key that were set aside, for the driver's count."""

    rows: int


class Machine(Protocol):
    """A state machine whose state the rows of one key change."""

    @property
    def is_blank(self) -> bool:
        """Whether the state is empty and need not be stored."""

    def to_bytes(self) -> bytes:
        """The serialized state, for restoring the machine."""


M = TypeVar("M", bound=Machine)
Row = TypeVar("Row")
Output = TypeVar("Output")
Returned = TypeVar("Returned")


def apply_guarded(
    machine: M,
    restore: Callable[[bytes | None], M],
    rows: Iterable[Row],
    take: Callable[[M, Row], Iterable[Output]],
    event: Callable[[M, Row, Exception], Output],
) -> Generator[Output, None, tuple[M, list[int]]]:
    """Apply the rows of a micro-batch, in record order, to the machine of their key. Yields the outputs; returns the
    machine after them, and the positions in ``rows`` of those that were set aside.

    ``restore`` creates a machine from serialized state; from ``None``, one in the state that ``machine`` has at the
    beginning of the micro-batch. ``take`` applies a row before it returns: what a generator raises later is
    not caught. ``event`` makes the output for a row that fails.

    While no row fails this costs nothing. When one fails, its change may be half done: the machine is restored, and the
    rows since the last serialized state are applied again, which gives the same state. It is then serialized, so that
    many failing rows do not repeat the same work many times."""
    since: list[Row] = []
    failed: list[int] = []
    state: bytes | None = None
    for number, row in enumerate(rows):
        try:
            outputs = take(machine, row)
        except MemoryError:  # not caused by the row
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


def collect(steps: Generator[Output, None, Returned]) -> tuple[list[Output], Returned]:
    """Run a generator; returns the yielded values and the return value."""
    outputs: list[Output] = []
    while True:
        try:
            outputs.append(next(steps))
        except StopIteration as end:
            return outputs, end.value


def kind_of(error: Exception) -> str:
    """The class of an error and where it was raised, without its text, which may contain a payload."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {frame.name}, line {frame.lineno}" for frame in last)
    return f"{type(error).__name__}{where}"


def reason_of(error: Exception) -> str:
    """:func:`kind_of` and the text of an error, printable and bounded, for a job that holds no payloads."""
    return f"{kind_of(error)}: {ascii(str(error))[1:-1]}"[:LONGEST_REASON]
