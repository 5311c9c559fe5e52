"""Computes the time window of a page, back from the recorded clock, which follows the records read and not the wall
clock."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Literal

from reliable_channel.analysis.figures import NEWEST, RECORDED_CLOCK
from reliable_channel.analysis.report.dimensions import bin_width
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.lake.tables import EPOCH

Last = Literal["1h", "6h", "24h", "7d", "30d", "all"]
SPANS: dict[Last, tuple[str, int | None]] = {
    "1h": ("the last hour", 3_600),
    "6h": ("6 hours", 6 * 3_600),
    "24h": ("24 hours", 86_400),
    "7d": ("7 days", 7 * 86_400),
    "30d": ("30 days", 30 * 86_400),
    "all": ("all times", None),
}
"""Label and length in seconds."""
LEAST_BIN_S = 15
LIVE = dt.timedelta(minutes=2)
"""The maximum distance between the recorded clock of a live pipeline and the wall clock."""


@dataclass(frozen=True)
class TimeWindow:
    """``since`` < event time ≤ ``until``. ``clock`` is the recorded clock, as for alerts, and ``newest`` when it was
    written, by the wall clock; ``None`` before the first record."""

    last: Last
    since: dt.datetime
    until: dt.datetime
    clock: dt.datetime | None
    newest: dt.datetime | None

    @property
    def bounds(self) -> dict[str, dt.datetime]:
        """The bounds as parameters of a query."""
        return {"since": self.since, "until": self.until}

    @property
    def now(self) -> dt.datetime | None:
        """The recorded clock while it follows the wall clock: axes then extend to it, and a silence at their end is
        visible. None for a recording, which ends with its last record."""
        if self.clock is None or self.newest is None or abs(self.newest - self.clock) > LIVE:
            return None
        return self.clock

    def bin_s(self, first: dt.datetime | None, last: dt.datetime | None) -> int:
        """The width in seconds of a bin of the time from ``first`` to ``last``."""
        length = 0.0 if first is None or last is None else (last - first).total_seconds()
        return max(LEAST_BIN_S, bin_width(length))


def window(lake: TableSnapshot, last: Last) -> TimeWindow:
    """The window that goes back from the recorded clock, and ends with what the tick that closes a back-fill fires."""
    (recorded,) = lake.select(
        f"SELECT max(event_time) AS last, {NEWEST} AS newest, {RECORDED_CLOCK} AS at FROM clock"  # noqa: S608 - constants of our own
    )
    clock = recorded["at"]
    until = recorded["last"] or dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
    length = SPANS[last][1]
    since = EPOCH if length is None or clock is None else max(EPOCH, clock - dt.timedelta(seconds=length))
    return TimeWindow(last, since, until, clock, recorded["newest"])
