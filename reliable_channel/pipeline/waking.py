"""Ticks of the recorded clock to rows that wake silent keys (design.md *A recorded clock moves silent keys*)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pandas as pd

from reliable_channel.config import PathSettings
from reliable_channel.pipeline import open_keys

Frames = Iterator[pd.DataFrame]


def waking(
    paths: PathSettings, job: str, columns: Iterable[str], row_of: Callable[[str], dict[str, Any]]
) -> Callable[[Frames], Frames]:
    """Rows of ticks → one row, with ``columns``, for every open key of ``job`` whose timer is due then. ``row_of`` is
    what the key itself says of its row; the place and the time are the tick's."""
    names = [*columns]

    def wake(frames: Frames) -> Frames:
        ticks = [tick for frame in frames for tick in frame.itertuples(index=False)]
        if not ticks:
            return
        due = open_keys.open_keys(paths, job)
        rows = [
            {**tick._asdict(), **row_of(key)}
            for tick in ticks
            for key in due.due((tick.kafka_topic, tick.kafka_partition), tick.event_us)
        ]
        if rows:
            frame = pd.DataFrame(rows).reindex(columns=names).astype(object)
            yield frame.where(frame.notna(), None)

    return wake
