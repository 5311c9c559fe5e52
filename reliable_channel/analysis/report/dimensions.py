"""Defines how analyses group (channel, sender, size) and how wide time bins are, as SQL fragments."""

from __future__ import annotations

from typing import Literal

from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.core.errors import LocalError

Dimension = Literal["channel_id", "sender_id", "size"]

SIZES = ("up to 100 B", "up to 1 KiB", "up to 10 KiB", "up to 100 KiB", "over 100 KiB")
"""The size classes of payloads, in order."""

_SIZE = (
    f"CASE WHEN payload_bytes IS NULL THEN 'unknown' WHEN payload_bytes <= 100 THEN '{SIZES[0]}' "
    f"WHEN payload_bytes <= 1024 THEN '{SIZES[1]}' WHEN payload_bytes <= 10240 THEN '{SIZES[2]}' "
    f"WHEN payload_bytes <= 102400 THEN '{SIZES[3]}' ELSE '{SIZES[4]}' END"
)
_FRAGMENTS = {"channel_id": "channel_id", "sender_id": "sender_id", "size": _SIZE}

BINS_S = (1, 5, 15, 60, 300, 900, 3_600, 6 * 3_600, 86_400, 7 * 86_400, 30 * 86_400, 365 * 86_400)
"""Widths of bins, seconds."""
MOST_BINS = 120


def expression(by: str) -> str:
    """The SQL of a dimension over ``channel_id``, ``sender_id`` or ``payload_bytes``. Raises :class:`LocalError` for
    one that is not known."""
    if by not in _FRAGMENTS:
        raise LocalError(f"{by!r} is not something to group by.", f"Use one of {', '.join(_FRAGMENTS)}.")
    return _FRAGMENTS[by]


def bin_width(length_s: float) -> int:
    """A bin width in seconds with which so long a time has at most :data:`MOST_BINS` bins."""
    return next((width for width in BINS_S if width * MOST_BINS >= length_s), BINS_S[-1])


def bin_seconds(source: TableWindow, table: str, column: str = "event_time") -> int:
    """A bin width in seconds with which the rows of ``table`` have at most :data:`MOST_BINS` bins."""
    span = source.query(f"SELECT coalesce(epoch(max({column}) - min({column})), 0) AS s FROM {table}")  # noqa: S608  our own names
    return bin_width(float(span["s"][0]))
