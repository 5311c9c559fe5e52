"""Draws charts in a child process of :mod:`reliable_channel.analysis.report.painter`: one line of JSON in, one line
out, until the input ends. It is run as a file, so that it loads only the drawing library."""

from __future__ import annotations

import json
import sys
from typing import Any

VL_VERSION = "6.4"
"""The Vega-Lite that Altair speaks, and that vl-convert must carry."""
LOOK = {
    "font": "Arial, Helvetica, Liberation Sans, DejaVu Sans Condensed, sans-serif",
    "padding": {"left": 8, "right": 12, "top": 5, "bottom": 5},
}
"""Fonts as wide as the one with which vl-convert measures text: in a wider one labels would be cut and legends would
overlap. Some room is added for remaining differences."""


def main() -> None:
    """Load the drawing library before the first chart arrives, then answer ``{"svg": …}`` or ``{"fault": …}`` to
    each."""
    import vl_convert

    def drawn(specification: dict[str, Any]) -> str:
        svg: str = vl_convert.vegalite_to_svg(specification, vl_version=VL_VERSION, config=LOOK, allowed_base_urls=[])
        return svg

    drawn({"data": {"values": []}, "mark": "point"})
    for line in sys.stdin:
        try:
            answer = {"svg": drawn(json.loads(line))}
        except ValueError as error:
            answer = {"fault": " ".join(str(error).split())[:200]}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
