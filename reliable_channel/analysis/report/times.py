"""Parses lengths of time, and times: absolute in ISO 8601, or back from now."""

from __future__ import annotations

import datetime as dt
import re

from reliable_channel.core.errors import LocalError

_DURATION = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,12})?) ?(ms|s|min|m|h|d|w)?")
_MS = {"ms": 1.0, "s": 1e3, None: 1e3, "m": 60e3, "min": 60e3, "h": 3600e3, "d": 86_400e3, "w": 7 * 86_400e3}
EXAMPLES = "2026-11-01, 2026-11-01T12:00, 2026-11-01T12:00+02:00, now, 90min, 24h or 7d (back from now)"


def duration_ms(text: str) -> float:
    """``30s``, ``500ms``, ``5min`` or ``1h`` in ms; a bare number is seconds. Raises :class:`LocalError` otherwise."""
    match = _DURATION.fullmatch(text.strip().lower())
    if not match:
        raise LocalError(f"{text.strip()[:40]!r} is not a length of time.", "Write it like 500ms, 30s or 5min.")
    return float(match[1]) * _MS[match[2]]


def moment(text: str, now: dt.datetime | None = None) -> dt.datetime:
    """A time with its zone. A date is its midnight; what names no zone is UTC; ``24h`` is 24 hours before ``now``.

    Raises :class:`LocalError` for anything else."""
    words = text.strip()
    present = now or dt.datetime.now(dt.UTC)
    if words.lower() == "now":
        return present
    back = _DURATION.fullmatch(words.lower())
    try:
        if back and back[2]:
            return present - dt.timedelta(milliseconds=duration_ms(words))
        parsed = dt.datetime.fromisoformat(words)
        return (parsed if parsed.tzinfo else parsed.replace(tzinfo=dt.UTC)).astimezone(dt.UTC)
    except (ValueError, OverflowError):
        raise LocalError(f"{words[:60]!r} is not a time.", f"Write it as one of: {EXAMPLES}.") from None
