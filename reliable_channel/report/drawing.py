"""Charts as pictures: SVG and PNG by vl-convert, in this process; nothing is loaded from a network."""

from __future__ import annotations

import base64

import altair as alt
import vl_convert

_VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])


def svg(chart: alt.TopLevelMixin) -> str:
    """The chart as an SVG document. Text in it is escaped by Vega; frames for charts come through ``look.readable``."""
    drawn: str = vl_convert.vegalite_to_svg(chart.to_dict(), vl_version=_VERSION, allowed_base_urls=[])
    return drawn


def png(chart: alt.TopLevelMixin, scale: float = 2) -> bytes:
    """The chart as a PNG."""
    drawn: bytes = vl_convert.vegalite_to_png(chart.to_dict(), vl_version=_VERSION, scale=scale, allowed_base_urls=[])
    return drawn


def data_uri(chart: alt.TopLevelMixin) -> str:
    """The chart as the ``src`` of an ``<img>``: what stands in a picture cannot act on the page around it."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg(chart).encode()).decode("ascii")
