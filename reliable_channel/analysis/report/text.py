"""Formats numbers, times and untrusted strings, the same for a terminal and for a page."""

from __future__ import annotations

from typing import Any

from reliable_channel.analysis.status_text import shown

LONGEST = 60
DASH = "–"


def name(value: Any, longest: int = LONGEST) -> str:
    """A string from the network: bounded, with unprintable characters as escapes. Code that writes markup must still
    escape it."""
    return DASH if value is None else shown(str(value), longest)


def count(value: Any) -> str:
    """A whole number."""
    return DASH if value is None else f"{int(value):,}"


def number(value: Any) -> str:
    """A number with as many digits as it needs."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def short(value: Any) -> str:
    """The first twelve characters of an id or key, as pages and searches accept it."""
    return DASH if value is None else name(value, 12)


def percent(value: Any) -> str:
    """A share, so that a small loss is not shown as none."""
    if value is None:
        return DASH
    part = float(value) * 100
    return f"{part:.0f} %" if part in (0, 100) else f"{part:.1f} %" if part >= 1 else f"{part:.2g} %"


def duration(ms: Any) -> str:
    """A length of time, given in ms."""
    if ms is None:
        return DASH
    value = float(ms)
    size = abs(value)
    if size < 1_000:
        return f"{value:.0f} ms"
    if size < 120_000:
        return f"{value / 1e3:.3g} s"
    if size < 7_200_000:
        return f"{value / 60e3:.3g} min"
    return f"{value / 3600e3:.3g} h"


def size(value: Any) -> str:
    """Bytes."""
    if value is None:
        return DASH
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:,.3g} TiB"


def time(value: Any) -> str:
    """A time of the report (ISO 8601 UTC) to the second; that it is UTC is said beside it."""
    return DASH if value is None else str(value)[:19].replace("T", " ")


def words(value: Any) -> str:
    """A name of ours, such as a cause, without its underscores."""
    return DASH if value is None else str(value).replace("_", " ")
