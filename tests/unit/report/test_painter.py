"""Charts drawn in a process of their own: the same pictures, and one sentence when they cannot be drawn."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import altair as alt
import pandas as pd
import pytest

from reliable_channel.analysis.report import drawing, painter_child
from reliable_channel.analysis.report.painter import Painter
from reliable_channel.core.errors import EnvironmentFault


@pytest.fixture(scope="module")
def painter() -> Iterator[Painter]:
    with Painter() as started:
        yield started


def test_it_draws_what_this_process_would_draw_in_the_order_asked(painter: Painter) -> None:
    charts = [
        alt.Chart(pd.DataFrame({"x": [n], "name": ["a\x1b[2Jb"]})).mark_bar().encode(x="x", y="name") for n in (1, 2)
    ]
    asked = [painter.svg(drawing.specification(chart)) for chart in charts]
    assert [drawn.result() for drawn in asked] == [drawing.svg(chart) for chart in charts]


def test_what_is_no_chart_is_one_sentence_and_the_next_chart_is_drawn(painter: Painter) -> None:
    wrong, right = painter.svg({"mark": 7}), painter.svg({"data": {"values": []}, "mark": "point"})
    with pytest.raises(EnvironmentFault, match=r"A chart cannot be drawn \("):
        wrong.result()
    assert right.result().startswith("<svg")


def test_a_process_that_ends_itself_is_one_sentence() -> None:
    with Painter([sys.executable, "-c", "raise SystemExit(7)"]) as ended:
        charts = [ended.svg({"mark": "point"}) for _ in range(2)]
        for chart in charts:
            with pytest.raises(EnvironmentFault, match="the process that draws ended with 7"):
                chart.result()


def test_it_ends_with_an_error_without_drawing_the_rest() -> None:
    with pytest.raises(ValueError, match="ours"), Painter() as started:
        later = [started.svg({"mark": "point"}) for _ in range(20)]
        raise ValueError("ours")
    assert all(chart.cancelled() or chart.exception() is not None for chart in later[1:])


def test_it_speaks_the_vega_lite_of_the_library_of_charts() -> None:
    assert alt.SCHEMA_VERSION.startswith(f"v{painter_child.VL_VERSION}.")
