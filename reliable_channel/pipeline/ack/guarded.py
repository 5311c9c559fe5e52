"""The one place where a fault of the state machine on one row is caught: the row is set aside and named.

Messages come from strangers, and a row on which the program fails would fail again at every start of the query. Such a
row is reported in ``channel_events`` with its record's coordinates, and the channel goes on with the state it had
before the row. The record itself stays in ``segments`` and ``sds_input``, so `reliable-channel rebuild` with a mended
program takes it as any other.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable

from reliable_channel.pipeline.ack import observer_rows
from reliable_channel.pipeline.ack.observed import InputRow, Output
from reliable_channel.pipeline.ack.observer import ChannelObserver

_log = logging.getLogger(__name__)

EVENT = "row_failed"
LONGEST_REASON = 300


def taken(
    observer: ChannelObserver,
    restore: Callable[[bytes | None], ChannelObserver],
    state: bytes | None,
    rows: Iterable[InputRow],
) -> tuple[ChannelObserver, list[Output], int]:
    """One channel's rows of a micro-batch, in record order: the observer after them, what they lead to, and how many of
    them were set aside.

    ``restore`` makes an observer of stored bytes, ``None`` for a new channel; ``observer`` is the one that it made of
    ``state``, with which the micro-batch begins. Nothing is paid while no row fails. When one does, its state may be
    half changed: the observer is made anew and the rows since the last stored bytes are taken again, which gives the
    same state. The bytes are then stored anew, so that many failing rows do not repeat the same work many times."""
    outputs: list[Output] = []
    since: list[InputRow] = []
    failed = 0
    for row in rows:
        try:
            outputs += observer.take(row)
        except MemoryError:  # says nothing about the row
            raise
        except Exception as error:
            reason = reason_of(error)
            _log.warning("a row was set aside: %s", reason)
            observer = restore(state)
            for good in since:
                observer.take(good)
            state, since = None if observer.is_blank else observer.to_bytes(), []
            outputs.append(_event(observer, row, reason))
            failed += 1
        else:
            since.append(row)
    return observer, outputs, failed


def reason_of(error: Exception) -> str:
    """The class of an error, where it was raised and its text: printable, bounded, for people. The ack job holds no
    payloads, so the text cannot have any."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {frame.name}, line {frame.lineno}" for frame in last)
    return f"{type(error).__name__}{where}: {ascii(str(error))[1:-1]}"[:LONGEST_REASON]


def _event(observer: ChannelObserver, row: InputRow, reason: str) -> Output:
    base = observer.base(row.event_us // 1000)
    return observer_rows.channel_event(base, EVENT, row.sds_id, row.sender_id, f"{row.row_kind} row: {reason}", row)
