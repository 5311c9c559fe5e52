"""Parses times: absolute in ISO 8601, or back from now."""

from __future__ import annotations

import datetime as dt
import re

from reliable_channel.core.errors import LocalError

_BACK = re.compile(r"([0-9]{1,6}) ?(s|min|m|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400}
EXAMPLES = "2026-11-01, 2026-11-01T12:00, 2026-11-01T12:00+02:00, now, 90min, 24h or 7d (back from now)"


def moment(text: str, now: dt.datetime | None = None) -> dt.datetime:
    """A time with its zone. A date is its midnight; what names no zone is UTC; ``24h`` is 24 hours before ``now``.

    Raises :class:`LocalError` for anything else."""
    words = text.strip()
    present = now or dt.datetime.now(dt.UTC)
    if words.lower() == "now":
        return present
    back = _BACK.fullmatch(words.lower())
    try:
        if back:
            return present - dt.timedelta(seconds=int(back[1]) * _SECONDS[back[2]])
        parsed = dt.datetime.fromisoformat(words)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise LocalError(f"{words[:60]!r} is not a time.", f"Write it as one of: {EXAMPLES}.") from None
