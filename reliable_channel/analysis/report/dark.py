"""Maps each colour of the charts to its colour on a dark page."""

from __future__ import annotations

PAPER = "#14181d"
DARK = {
    "#333333": "#d5dae0",
    "#555555": "#9aa7b4",
    "#DDDDDD": "#2c3540",
    "#BBBBBB": "#4b5866",
    "#0072B2": "#3d8fd1",
    "#56B4E9": "#a6daf5",
    "#D55E00": "#f0803c",
    "#009E73": "#2fc49a",
    "#8C8C8C": "#8a94a0",
    "#1d2630": "#d5dae0",
    "#55616e": "#9aa7b4",
    "white": "#1a2129",
}
"""The colours of the charts, in light and in dark."""
_VEGA = {"#000": "#e6edf3", "black": "#e6edf3", "#888": "#6b7683", "white": PAPER}
"""The colours in which Vega draws text, axes and the background."""


def with_dark_scheme(svg: str) -> str:
    """The SVG document with a style that changes its colours where the reader prefers a dark page."""
    rules = "".join(
        f'[{name}="{light}"]{{{name}:{dark}}}'
        for light, dark in {**DARK, **_VEGA}.items()
        for name in ("fill", "stroke")
    )
    head, mark, rest = svg.partition(">")
    return f"{head}{mark}<style>@media screen and (prefers-color-scheme:dark){{{rules}}}</style>{rest}"
