"""Renders charts as SVG with vl-convert in this process; nothing is loaded from a network."""

from __future__ import annotations

import re
import threading
from typing import Any

import altair as alt
import vl_convert

from reliable_channel.analysis import text

VL_VERSION = "6.4"
"""The Vega-Lite that Altair speaks, and that vl-convert must carry."""
LOOK = {
    "font": "Arial, Helvetica, Liberation Sans, DejaVu Sans Condensed, sans-serif",
    "padding": {"left": 16, "right": 12, "top": 5, "bottom": 5},
}
"""Fonts as wide as the one with which vl-convert measures text: in a wider one labels would be cut and legends would
overlap. Some room is added for remaining differences."""
LONGEST = 200
"""Characters that are kept of a text which had to be made printable."""

_BEYOND = re.compile("[\U00010000-\U0010ffff]")
_PROPERTIES = re.compile(
    "constructor|hasOwnProperty|isPrototypeOf|propertyIsEnumerable|to(Locale)?String|valueOf|__(define|lookup)[GS]etter__"
)
"""What every JavaScript object has. Vega looks names up among the properties of one, and fails when it finds these."""
_drawing = threading.Lock()


def svg(chart: alt.TopLevelMixin | dict[str, Any]) -> str:
    """The chart, or its Vega-Lite specification, as an SVG document; Vega escapes the text in it. Safe from several
    threads, which take turns."""
    spec = printable(chart if isinstance(chart, dict) else chart.to_dict())
    with _drawing:
        drawn: str = vl_convert.vegalite_to_svg(spec, vl_version=VL_VERSION, config=LOOK, allowed_base_urls=[])
    return drawn


def printable(value: Any) -> Any:
    """A specification, or a part of one, in which every text can be drawn."""
    if isinstance(value, dict):
        return {printable(key): printable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [printable(inner) for inner in value]
    if not isinstance(value, str):
        return value
    if _PROPERTIES.fullmatch(value):
        return f"{value} "
    # Strangers choose the names in charts, and one control character in a label ends the whole process (seen with
    # vl-convert 1.9).
    words = value if value.isprintable() else text.printable(value, LONGEST)
    # Vega cuts a long label between the two halves of a character beyond U+FFFF, and vl-convert draws no half.
    return _BEYOND.sub(lambda beyond: beyond[0].encode("unicode_escape").decode(), words)
