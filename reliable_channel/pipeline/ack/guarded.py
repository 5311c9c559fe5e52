"""Lets an observer take the rows of its channel, and reports those on which the program fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reliable_channel.pipeline import guarded
from reliable_channel.pipeline.ack import output_rows
from reliable_channel.pipeline.ack.observer import ChannelObserver
from reliable_channel.pipeline.ack.records import InputRow, Output


def taken(
    observer: ChannelObserver, restore: Callable[[bytes | None], ChannelObserver], rows: Iterable[InputRow]
) -> tuple[ChannelObserver, list[Output], list[int]]:
    """One channel's rows of a micro-batch, in record order: the observer after them, what they lead to, and which of
    them, by their place in ``rows``, were set aside (:func:`reliable_channel.pipeline.guarded.taken`).

    ``restore`` makes an observer of stored bytes, or of ``None`` the one with which the micro-batch begins, as
    ``observer`` is."""
    failed: list[int] = []

    def take(observer: ChannelObserver, numbered: tuple[int, InputRow]) -> list[Output]:
        return observer.take(numbered[1])

    def event(observer: ChannelObserver, numbered: tuple[int, InputRow], error: Exception) -> Output:
        failed.append(numbered[0])
        return _event(observer, numbered[1], error)

    observer, outputs, _ = guarded.taken(observer, restore, enumerate(rows), take, event)
    return observer, outputs, failed


def _event(observer: ChannelObserver, row: InputRow, error: Exception) -> Output:
    base = observer.base(row.event_us // 1000)
    detail = f"{row.row_kind} row: {guarded.reason_of(error)}"
    return output_rows.channel_event(base, guarded.EVENT, row.sds_id, row.sender_id, detail, row)
