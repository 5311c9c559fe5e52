"""Formats values for a page. Ids are chosen by strangers, so they are made printable, put on one line and cut; the
templates escape them."""

from __future__ import annotations

import datetime as dt
from typing import Any

from markupsafe import Markup, escape

from reliable_channel.analysis.status_text import shown

LONGEST = 48


def words(value: object, longest: int = LONGEST) -> str:
    """A string from the network, printable and cut in the middle, since beginnings and ends distinguish ids."""
    if value is None:
        return "–"
    text = shown(value, 10_000)
    if len(text) <= longest:
        return text
    return f"{text[: longest * 2 // 3]}…{text[-(longest // 3 - 1) :]}"


def hexed(value: bytes | None) -> str:
    """Bytes as hex; a dash for none."""
    return "–" if value is None else value.hex()


def moment(value: dt.datetime | None) -> str:
    """A time in UTC to the ms; a dash for none, also pandas'."""
    if value is None or value != value:
        return "–"
    return value.astimezone(dt.UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def span(ms: float | None) -> str:
    """A duration in the unit that suits it."""
    if ms is None:
        return "–"
    if abs(ms) < 1_000:
        return f"{ms:,.0f} ms"
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if abs(ms) >= 2 * size:
            return f"{ms / size:,.1f} {unit}"
    return f"{ms / 1_000:,.1f} s"


def count(value: float | None) -> str:
    """A number with separators."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"


def share(part: float | None, whole: float | None) -> str:
    """``part`` of ``whole`` in percent; 100 % and 0 % only if exact."""
    if part is None or not whole:
        return "–"
    percent = 100 * part / whole
    if 0 < percent < 0.1:
        return "< 0.1 %"
    if 99.9 < percent < 100:
        return "> 99.9 %"
    return f"{percent:.1f} %"


def size(value: float | None) -> str:
    """A number of bytes."""
    if value is None:
        return "–"
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1024
    return f"{value:,.1f} GiB"


def dump(raw: bytes | None, most: int = 256) -> str:
    """A hex dump, 16 bytes a line: offset, hex, and the printable ASCII."""
    lines = []
    for start in range(0, min(len(raw or b""), most), 16):
        piece = (raw or b"")[start : start + 16]
        pairs = " ".join(f"{byte:02x}" for byte in piece)
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{start:04x}  {pairs:<47}  {text}")
    return "\n".join(lines)


def prose(text: str) -> Markup:
    """A sentence of this program (or one that quotes a fault), escaped, with text between backticks as code."""
    parts = [escape(words(part, 600)) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))


FILTERS: dict[str, Any] = {
    "words": words,
    "hexed": hexed,
    "moment": moment,
    "span": span,
    "count": count,
    "size": size,
    "dump": dump,
    "prose": prose,
}
