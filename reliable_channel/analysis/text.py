"""Formats numbers, times and untrusted strings, the same for terminals, pages and charts.

Strangers choose topics, channels and ids: characters that could move a cursor, colour a terminal or change the writing
direction become escapes, and long texts are cut. Code that writes markup must still escape them. ``None`` is a dash.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

from reliable_channel.core.printable import escape_unprintable

DASH = "–"
LONGEST = 60


def printable(text: object, longest: int = 80) -> str:
    """``text`` on one line, printable only (``\\x1b``, ``\\u202e`` for what is not), cut at ``longest`` characters."""
    words = str(text)
    return escape_unprintable(words[:longest].replace("\\", "\\\\")) + ("…" if len(words) > longest else "")


def name(value: Any, longest: int = LONGEST) -> str:
    """A string from the network, printable and cut in the middle; pandas' NaN is ``None``, too."""
    if value is None or value != value:
        return DASH
    text = printable(value, 10_000)
    # Cut in the middle: beginnings and ends distinguish ids.
    return text if len(text) <= longest else f"{text[: longest * 2 // 3]}…{text[-(longest // 3 - 1) :]}"


def short(value: Any) -> str:
    """The first twelve characters of an id or key, as pages and searches accept it."""
    return DASH if value is None else printable(value, 12)


def count(value: Any) -> str:
    """A whole number."""
    return DASH if value is None else f"{int(value):,}"


def pluralize(number: int, what: str) -> str:
    """A number with its noun (a plural in ``s``)."""
    return f"{number:,} {what.removesuffix('s') if number == 1 else what}"


def number(value: Any) -> str:
    """A number with as many digits as it needs."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"


def percent(value: Any) -> str:
    """A share, or how much one changed, so that a small loss is not shown as none: 0 % and 100 % only if exact."""
    if value is None:
        return DASH
    part = float(value) * 100
    size = abs(part)
    if 99.9 < size < 100:
        return "> 99.9 %" if part > 0 else "< -99.9 %"
    return f"{part:.0f} %" if size in (0, 100) else f"{part:.1f} %" if size >= 1 else f"{part:.2g} %"


def share(part: float | None, whole: float | None) -> str:
    """``part`` of ``whole`` in percent; a dash of nothing."""
    return percent(None if part is None or not whole else part / whole)


def duration(ms: Any) -> str:
    """A length of time, given in ms."""
    if ms is None:
        return DASH
    value = float(ms)
    size = abs(value)
    if size < 1_000:
        return f"{value:.0f} ms"
    for unit, length, below in (("s", 1e3, 120e3), ("min", 60e3, 7_200e3), ("h", 3_600e3, 172_800e3)):
        if size < below:
            return f"{value / length:.3g} {unit}"
    return f"{value / 86_400e3:,.1f} d"


def size(value: Any) -> str:
    """Bytes."""
    if value is None:
        return DASH
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{number(amount)} {unit}"
        amount /= 1024
    return f"{number(amount)} TiB"


def time(value: Any) -> str:
    """A time of the report (ISO 8601 UTC) to the second; that it is UTC is said beside it."""
    return DASH if value is None else str(value)[:19].replace("T", " ")


def moment(value: dt.datetime | None) -> str:
    """A time in UTC to the ms; a dash for none, also pandas'."""
    if value is None or value != value:
        return DASH
    return value.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def words(value: Any) -> str:
    """A name of this program, such as a cause, without its underscores."""
    return DASH if value is None else str(value).replace("_", " ")
