"""Every chart can be drawn: of a story with everything in it, of nothing, and of strings that strangers chose."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import altair as alt
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.analysis.dashboard import figures
from reliable_channel.analysis.report import capacity, delivery, depth, drawing, graph, investigate, loss, quarantine
from reliable_channel.analysis.report.charts import capacity as capacity_charts
from reliable_channel.analysis.report.charts import delivery as delivery_charts
from reliable_channel.analysis.report.charts import look
from reliable_channel.analysis.report.charts import loss as loss_charts
from reliable_channel.analysis.report.charts import message as message_charts
from reliable_channel.analysis.report.dark import with_dark_scheme
from reliable_channel.analysis.report.source import TableWindow
from tests.support.sample_values import HOSTILE

CHARTS: dict[str, Callable[[TableWindow], look.Chart]] = {
    "outcomes": lambda s: delivery_charts.outcomes(delivery.by_channel(s)),
    "rate": lambda s: delivery_charts.rate(delivery.rate(s)),
    "curve": lambda s: delivery_charts.curve(delivery.latency_curve(s), "t", "how"),
    "quantiles": lambda s: delivery_charts.quantiles(delivery.latency(s, "sender_id"), "t", "messages"),
    "depth": lambda s: delivery_charts.depth(depth.depth_over_time(depth.causal_depth(s))),
    "causes": lambda s: loss_charts.causes(loss.causes(s)),
    "losses": lambda s: loss_charts.losses_over_time(loss.losses_over_time(s)),
    "bursts": lambda s: loss_charts.bursts(loss.bursts(s)),
    "index": lambda s: loss_charts.by_segment_index(loss.by_segment_index(s)),
    "parity": lambda s: loss_charts.parity(loss.parity(s)),
    "stores": lambda s: loss_charts.stores(loss.stores(s)),
    "refetch": lambda s: loss_charts.refetch(loss.refetch(s)),
    "quarantine": lambda s: loss_charts.quarantine(quarantine.reasons(s)),
    "throughput": lambda s: capacity_charts.throughput(capacity.throughput(s)),
    "lag": lambda s: capacity_charts.lag(capacity.lag(s)),
    "state": lambda s: capacity_charts.state(capacity.state(s)),
    "phases": lambda s: capacity_charts.phases(capacity.phases(s)),
    "cost": lambda s: capacity_charts.cost(capacity.cost(s)),
}


def drawn(chart: look.Chart) -> str:
    """The SVG, which must be well-formed, without script, handler or address."""
    text = drawing.svg(chart)
    for element in ET.fromstring(text).iter():  # noqa: S314  our own
        assert not element.tag.endswith("script")
        assert not [name for name in element.attrib if name.lower().startswith("on") or name.endswith("href")]
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    return text


@pytest.fixture(scope="module")
def source(sample_tables: Path) -> TableWindow:
    return TableWindow(sample_tables)


@pytest.mark.parametrize("name", CHARTS)
def test_it_can_be_drawn(source: TableWindow, name: str) -> None:
    assert drawn(CHARTS[name](source)).count("<path") > 5


@pytest.mark.parametrize("name", CHARTS)
def test_without_data_it_says_so(tmp_path: Path, name: str) -> None:
    said = json.dumps(CHARTS[name](TableWindow(tmp_path)).to_dict())
    assert re.search(r'"why": "[^"]*(window|delivered)', said)


def test_what_stands_in_place_of_a_chart_can_be_drawn() -> None:
    assert "Nothing is here." in drawn(look.nothing("A title", "Nothing is here."))


@pytest.mark.parametrize("number", [0, 3, 4, 8])
def test_a_message_of_a_hostile_channel_is_drawn(source: TableWindow, number: int) -> None:
    (message,) = investigate.find(source, f"{HOSTILE[number]} {number}")
    assert "envelope" in drawn(message_charts.timeline(investigate.timeline(source, message)))


def test_the_causal_graph_is_drawn(source: TableWindow) -> None:
    message = investigate.example(source)
    assert "causal graph" in drawn(message_charts.causal_graph(graph.graph(source, message)))


def test_a_narrow_graph_has_ids_and_a_wide_one_their_senders_as_well(source: TableWindow) -> None:
    found = graph.graph(source, investigate.example(source))
    longest = []
    for width in (100, 2_000):
        data = message_charts.causal_graph(found, width).to_dict()["datasets"].values()
        longest.append(max(len(row["label"]) for rows in data for row in rows if "label" in row))
    assert longest[0] == 8 < longest[1]


def test_many_names_become_few() -> None:
    frame = pd.DataFrame({"name": [f"n{i}" for i in range(40)], "messages": range(40)})
    assert set(look.topmost(frame, "name", "messages")["name"]) == {f"n{i}" for i in range(33, 40)} | {look.OTHER}
    assert len(look.keep_topmost(frame, "name", "messages")) == look.MOST_NAMES


def test_a_stack_stands_on_its_lower_part() -> None:
    time = pd.Timestamp("2026-01-01", tz="UTC")
    frame = pd.DataFrame({"time": [time, time], "name": ["small", "large"], "n": [1, 5]})
    rows, names = look.stack_bars(frame, "name", "n", 60)
    assert names == ["large", "small"]
    assert list(zip(rows["low"], rows["high"], strict=True)) == [(0, 5), (5, 6)]


@pytest.mark.parametrize(
    ("seconds", "words"), [(60, "every minute"), (15, "every 15 s"), (21_600, "every 6 h"), (604_800, "every 7 days")]
)
def test_widths_of_time_are_words(seconds: int, words: str) -> None:
    assert look.every(seconds) == words


@pytest.mark.parametrize(
    "name",
    ["\x1b[2J", "\x00", "\ud800", "\u202e", "a\nb", pytest.param("\U0001f600" * 60, id="longer than a label may be")],
)
def test_a_chart_draws_any_name_that_nobody_cleaned(name: str) -> None:
    chart = alt.Chart(pd.DataFrame({"name": [name], "n": [1]})).mark_bar().encode(x="n:Q", y="name:N")
    drawn = drawing.svg(chart)
    assert name not in drawn
    assert name.encode("unicode_escape").decode() in drawn


@pytest.mark.parametrize("name", ["constructor", "toString", "__lookupGetter__", "__proto__"])
def test_a_chart_draws_the_names_of_what_every_object_of_javascript_has(name: str) -> None:
    rows = pd.DataFrame({"name": [name, "another"], "n": [1, 2]})
    bars = look.stacked_bars(rows, look.title_params("title"), "name", ["another", name], x="n:Q", y="name:N")
    assert drawing.svg(look.set_size(bars)).count(f">{name}") == 2  # the axis and the legend


@given(
    st.lists(st.tuples(st.sampled_from(["sender", "refetch"]), st.integers(0, 10_000)), min_size=1, max_size=60),
    st.sampled_from([290, look.WIDTH, 1_040]),
)
def test_labels_of_a_time_line_count_every_mark_and_never_overlap(marks: list[tuple[str, int]], plot: int) -> None:
    begin = pd.Timestamp("2026-01-01", tz="UTC")
    shown = pd.DataFrame(
        [(lane, begin + pd.Timedelta(seconds=s), f"attempt {s}") for lane, s in marks],
        columns=["lane", "time", "label"],
    )
    labels = message_charts.labels_of(shown, plot)
    told = [1 + int(m[1]) if (m := re.search(r" \+(\d+)$", label)) else 1 for label in labels["label"]]
    assert sum(told) == len(marks)
    span = max((shown["time"].max() - begin_of(shown)).total_seconds(), 0.001)
    for _, lane in labels.groupby("lane"):
        places = []
        for row in lane.itertuples():
            x = (row.time - begin_of(shown)).total_seconds() / span * plot
            width = min(message_charts.LABEL, len(row.label) * message_charts.CHARACTER)
            places.append((x, x + width) if row.align == "left" else (x - width, x))
        assert all(one[1] <= other[0] for one, other in pairwise(places))


def begin_of(shown: pd.DataFrame) -> pd.Timestamp:
    return shown["time"].min()


def test_answers_of_stores_long_after_do_not_stretch_the_time_line() -> None:
    begin = pd.Timestamp("2026-01-01", tz="UTC")
    times = [begin, begin + pd.Timedelta(minutes=5), begin + pd.Timedelta(days=300)]
    frame = pd.DataFrame({"time": times, "lane": ["sender", "loss", "store"]})
    shown, later = message_charts.move_late_answers(frame)
    assert later
    assert list(shown["time"][:2]) == times[:2]
    assert times[1] < shown["time"][2] < times[1] + pd.Timedelta(minutes=1)
    soon = frame.assign(time=[begin, times[1], begin + pd.Timedelta(minutes=9)])
    assert message_charts.move_late_answers(soon)[0]["time"].equals(soon["time"])


def test_a_chart_has_the_colours_of_a_dark_page(source: TableWindow) -> None:
    assert {"white", "#000"} <= changed_in_the_dark(drawing.svg(CHARTS["causes"](source)))


def test_a_chart_of_the_dashboard_has_the_colours_of_a_dark_page(source: TableWindow) -> None:
    figure = figures.Figure("", "", (), [], lambda _: CHARTS["causes"](source))
    assert {"#1d2630", "#55616e"} <= changed_in_the_dark(figures.svg(figure, dark=False).decode())


def changed_in_the_dark(svg: str) -> set[str]:
    """The colours that the picture is drawn in and that another replaces; all others suit both pages."""
    both = with_dark_scheme(svg)
    ET.fromstring(both)  # noqa: S314  drawn here
    rules = set(re.findall(r'\[fill="([^"]+)"\]\{fill:', both))
    drawn = set(re.findall(r'fill="([^"]+)"', svg)) - {"none", "transparent"}
    assert drawn - rules <= set(look.PALETTE)
    return drawn & rules


def test_a_name_has_one_colour_in_every_chart_of_the_same_names() -> None:
    one = look.colours_by_name("name", ["talk", "ops", look.OTHER, "files"]).to_dict()["scale"]
    other = look.colours_by_name("name", ["files", "talk", "ops"]).to_dict()["scale"]
    by_name = dict(zip(one["domain"], one["range"], strict=True))
    assert dict(zip(other["domain"], other["range"], strict=True)).items() <= by_name.items()
    assert by_name[look.OTHER] == look.GREY


def test_what_draws_speaks_the_vega_lite_of_the_library_of_charts() -> None:
    assert alt.SCHEMA_VERSION.startswith(f"v{drawing.VL_VERSION}.")
