"""Draws the charts of one message: its time line (``report/investigate.py``) and its causal graph
(``report/graph.py``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import altair as alt
import pandas as pd

from reliable_channel.analysis import text
from reliable_channel.analysis.report.charts import look
from reliable_channel.analysis.report.graph import Graph, Kind
from reliable_channel.analysis.report.investigate import LANES

MOST_MARKS = 400


def timeline(frame: pd.DataFrame, width: int = look.WIDTH) -> look.Chart:
    """Everything that happened to a message, by lane (:func:`investigate.timeline`), on a plot of ``width`` pixels."""
    title = "What happened to the message"
    if frame.empty:
        return look.nothing(title, "No table says anything about it in this window.")
    shown, later = move_late_answers(look.readable(frame.head(MOST_MARKS), "what", "who", "detail"))
    lanes = [lane for lane in LANES if lane in set(shown["lane"])]
    shown["label"] = shown["what"].where(shown["who"].isna(), shown["what"] + " · " + shown["who"].fillna(""))
    labels = labels_of(shown, width)
    shown["hover"] = shown["label"] + ", " + shown["time"].map(text.moment) + (", " + shown["detail"]).fillna("")
    y = alt.Y("lane:N", sort=lanes, title=None, axis=alt.Axis(grid=True))
    first, last = (text.moment(time) for time in (frame["time"].min(), frame["time"].max()))
    subtitle = f"{len(frame):,} events from {first} UTC to {last} UTC"
    subtitle += "; store nodes answered long after, at the right edge" if later else ""
    points = (
        alt.Chart(shown, title=look.title_params(title, subtitle))
        .mark_point(filled=True, size=60, opacity=0.7, color=look.BLUE)
        .encode(
            **look.answers(shown),
            x=look.time_axis(shown["time"], title="time (UTC)"),
            y=y,
            color=alt.Color("lane:N", sort=lanes, legend=None, scale=_lanes(lanes)),
        )
    )
    words = [
        alt.Chart(labels[labels["align"] == align])
        .mark_text(align=align, dx=4 if align == "left" else -4, dy=-11, fontSize=10, limit=LABEL, aria=False)
        .encode(x="time:T", y=y, text="label:N")
        for align in ("left", "right")
    ]
    return look.set_size(alt.layer(points, *words), 30 + 36 * len(lanes))


def move_late_answers(shown: pd.DataFrame) -> tuple[pd.DataFrame, bool]:
    """The events, with answers of store nodes that came long after everything else moved to just after it, and whether
    there were any. Queried about old records, stores answer today, and the time line would have one mark at each
    end."""
    from_store = shown["lane"] == "store"
    if from_store.all() or not from_store.any():
        return shown, False
    last = shown.loc[~from_store, "time"].max()
    span = max(last - shown["time"].min(), pd.Timedelta(minutes=1))
    late = from_store & (shown["time"] > last + 10 * span)
    return shown.assign(time=shown["time"].where(~late, last + span / 20)), bool(late.any())


LABEL = 180
"""The longest label, pixels."""
CHARACTER = 6.5
"""A little more than a character's width at the labels' size, pixels."""


def labels_of(shown: pd.DataFrame, plot: int = look.WIDTH) -> pd.DataFrame:
    """A label (lane, time, label, align) for every mark that has room for one in its lane of ``plot`` pixels; a mark
    without a label is counted in the previous one."""
    begin = shown["time"].min()
    span = max((shown["time"].max() - begin).total_seconds(), 0.001)
    rows: list[dict[str, Any]] = []
    for lane, marks in shown.sort_values("time", kind="stable").groupby("lane", sort=False):
        end = float("-inf")
        for time, label in zip(marks["time"], marks["label"], strict=True):
            x = (time - begin).total_seconds() / span * plot
            # Room for " +99" as well.
            width = min(LABEL, (len(label) + 4) * CHARACTER) + 8
            left, align = (x, "left") if x + width <= plot else (x - width, "right")
            if left < end:
                rows[-1]["more"] += 1
                continue
            end = left + width
            rows.append({"lane": lane, "time": time, "label": label, "align": align, "more": 0})
    labels = pd.DataFrame(rows)
    labels["label"] += [f" +{more}" if more else "" for more in labels.pop("more")]
    return labels


def _lanes(lanes: list[str]) -> alt.Scale:
    trouble = {"loss", "channel"}
    requests = {"refetch", "store", "repair"}
    colours = [look.VERMILION if lane in trouble else look.ORANGE if lane in requests else look.BLUE for lane in lanes]
    return alt.Scale(domain=lanes, range=colours)


ROOM = 110
"""The pixels between two steps of the graph that leave room for the sender's name beside the id."""
KINDS = {
    Kind.OWN: (look.BLUE, "square"),
    Kind.OWN_ABSENT: (look.VERMILION, "square"),
    Kind.ARRIVED: (look.GREY, "circle"),
    Kind.ABSENT: (look.VERMILION, "cross"),
}


def causal_graph(graph: Graph, width: int = look.WIDTH, link_of: Callable[[str], str] | None = None) -> look.Chart:
    """The message between its past (left) and the messages that name it (right). ``link_of`` gives the address that the
    node of an SDS id leads to."""
    title = "The causal graph around the message"
    if len(graph.nodes) <= 1 and not graph.edges:
        return look.nothing(title, "It names nothing that is known here, and nothing that arrived names it.")
    columns: dict[int, int] = {}
    rows = []
    for node in graph.nodes:
        slot = columns.get(node.generation, 0)
        columns[node.generation] = slot + 1
        rows.append((node.sds_id, node.generation, slot, node.sender_id, node.kind.value))
    nodes = look.readable(pd.DataFrame(rows, columns=["sds_id", "generation", "slot", "sender", "kind"]), "sender")
    tallest = max(columns.values())
    kinds = [kind.value for kind in KINDS]
    nodes["y"] = [
        -(slot + (tallest - columns[gen]) / 2) for slot, gen in zip(nodes["slot"], nodes["generation"], strict=True)
    ]
    nodes["label"] = nodes["sds_id"].str[:8].map(lambda begin: begin if begin.isprintable() else "…")
    if width / (1 + max(columns) - min(columns)) > ROOM:
        nodes["label"] += (" " + nodes["sender"]).fillna("")
    nodes["hover"] = nodes["kind"] + ": " + nodes["sds_id"].map(text.printable) + (" of " + nodes["sender"]).fillna("")
    if link_of is not None:
        nodes["link"] = nodes["sds_id"].map(link_of)
    positions = nodes.set_index("sds_id")
    lines = pd.DataFrame(
        [
            (
                positions.at[later, "generation"],
                positions.at[later, "y"],
                positions.at[earlier, "generation"],
                positions.at[earlier, "y"],
            )
            for later, earlier in graph.edges
        ],
        columns=["x", "y", "x2", "y2"],
    )
    low, high = min(columns), max(columns)
    steps = "steps in the causal history: past to the left, later to the right"
    x = alt.X(
        "generation:Q",
        title=steps,
        scale=alt.Scale(domain=[low - 0.3, high + 0.7]),
        axis=alt.Axis(values=list(range(low, high + 1)), format="d", grid=False),
    )
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-tallest + 0.3, 0.7]))
    subtitle = "A line joins a message with one that it names, which stands to its left." + (
        " There is more than is drawn." if graph.cut else ""
    )
    rules = (
        alt.Chart(lines)
        .mark_rule(color="#BBBBBB", aria=False)
        .encode(x=alt.X("x:Q", title=steps), y=y, x2=alt.X2("x2:Q", title=steps), y2="y2:Q")
    )
    points = (
        alt.Chart(nodes, title=look.title_params(title, subtitle))
        .mark_point(filled=True, size=110, opacity=1)
        .encode(
            **look.answers(nodes),
            x=x,
            y=y,
            color=look.colours_by_name("kind", kinds, [colour for colour, _ in KINDS.values()]),
            shape=alt.Shape(
                "kind:N",
                sort=kinds,
                legend=None,
                scale=alt.Scale(domain=kinds, range=[shape for _, shape in KINDS.values()]),
            ),
        )
    )
    # Words, and behind them what keeps the lines away.
    words = [
        alt.Chart(nodes)
        .mark_text(align="left", dx=-5, dy=-13, fontSize=10, limit=140, aria=False, **behind)
        .encode(x=x, y=y, text="label:N")
        for behind in ({"stroke": "white", "strokeWidth": 4}, {})
    ]
    return look.set_size(alt.layer(rules, *words, points), min(640, 60 + 34 * tallest))
