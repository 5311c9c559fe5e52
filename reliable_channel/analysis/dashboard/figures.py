"""Prepares the charts of the pages, each with its table, an alternative text, and the colours of a dark page. Frames
and charts are those of the report."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from typing import Any

import pandas as pd

from reliable_channel.analysis import text
from reliable_channel.analysis.dashboard.overview import verdicts as verdict_bins
from reliable_channel.analysis.dashboard.picture import add_tooltips, link
from reliable_channel.analysis.dashboard.windows import TimeWindow
from reliable_channel.analysis.figures import CAME, NO_CAUSE
from reliable_channel.analysis.report import capacity, delivery
from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.dark import DARK
from reliable_channel.analysis.report.graph import graph as causal_graph
from reliable_channel.analysis.report.investigate import MessageFacts, timeline
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.analysis.report.source import Window as Rows
from reliable_channel.analysis.report.splits import Split, find_splits, read_contacts, sum_known

MOST_ROWS = 200
"""The maximum number of rows in the table below a picture."""


@dataclass(frozen=True)
class Figure:
    """``draw`` makes the chart for a plot of so many pixels (altair is loaded only then); ``columns`` and ``rows`` show
    the same as text. ``more``: the number of rows that the table leaves out; ``uri``: the picture itself, on a page
    without a server."""

    title: str
    alt: str
    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    draw: Callable[[int], Any]
    more: int = 0
    notes: tuple[str, ...] = ()
    uri: str = ""


def outcome(verdict: str, cause: str | None) -> str:
    """Verdict and cause in words."""
    cause = (cause or "").replace("_", " ")
    if verdict == "delivered":
        return f"delivered {cause}".strip()
    return f"{verdict}: {cause or 'no cause known'}"


def verdicts(lake: TableSnapshot, window: TimeWindow) -> Figure:
    """Messages by verdict and cause over time."""
    binned = verdict_bins(lake, window)
    bins = [
        {
            **row,
            "outcome": outcome(row["verdict"], row["cause"]),
            "link": link("/messages", last=window.last, verdict=row["verdict"], cause=row["cause"] or NO_CAUSE),
        }
        for row in binned["bins"]
    ]

    total = sum(row["messages"] for row in bins)
    return _make_figure(
        "Verdicts over time",
        f"Stacked bars of {text.pluralize(total, 'messages')} by verdict and cause, by the time of their first trace.",
        ("first seen (UTC)", "verdict and cause", "messages"),
        ((text.moment(row["time"])[:19], row["outcome"], row["messages"]) for row in bins),
        len(bins),
        lambda _: _import_charts("loss").verdicts(pd.DataFrame(bins), binned["seconds"], window.now),
    )


def rate(lake: TableSnapshot, window: TimeWindow) -> Figure:
    """Messages delivered over time, by channel."""
    bounded = window.clock is not None and window.last != "all"
    begin = window.since + dt.timedelta(microseconds=1)  # which is in a window of the report, and not in a page's
    frame = delivery.rate(TableWindow(lake, Rows(since=begin) if bounded else None))
    frame.attrs["until"] = window.now

    def draw(_: int) -> Any:
        links = {name: link("/channels", last=window.last, text=name) for name in frame["name"].unique()}
        return _import_charts("delivery").rate(frame.assign(link=frame["name"].map(links)))

    rows = ((text.moment(row.time)[:19], text.name(row.name), row.messages) for row in frame.itertuples(index=False))
    return _make_figure(
        "Messages delivered",
        f"Stacked bars of {text.pluralize(int(frame['messages'].sum()), 'messages')} delivered, by channel and time.",
        ("delivered (UTC)", "channel", "messages"),
        rows,
        len(frame),
        draw,
    )


def lag(lake: TableSnapshot, window: TimeWindow) -> Figure:
    """How far each query was behind."""
    frame = capacity.lag(TableWindow(lake)).groupby("query").tail(200)

    newest = frame.sort_values("time", ascending=False, kind="stable")
    rows = (
        (text.moment(row.time)[:19], text.name(row.query), int(row.lag), row.unit)
        for row in newest.itertuples(index=False)
    )
    return _make_figure(
        "Lag",
        "Lines per query: what was unread when each micro-batch ended.",
        ("micro-batch ended (UTC)", "query", "behind", "unit"),
        rows,
        len(frame),
        lambda _: _import_charts("capacity").lag(frame),
    )


def time_line(lake: TableSnapshot, message: MessageFacts) -> Figure:
    """Every known event of a message."""
    frame = timeline(TableWindow(lake), message)

    rows = (
        (
            text.moment(row.time),
            row.lane,
            text.name(row.what),
            text.name(row.who),
            text.name(row.detail, 120),
            text.name(row.sds_id, 20),
        )
        for row in frame.itertuples(index=False)
    )
    return _make_figure(
        "Time line",
        f"Marks in lanes over time: {text.pluralize(len(frame), 'events')} of this message.",
        ("time (UTC)", "lane", "what", "who", "detail", "SDS id"),
        rows,
        len(frame),
        lambda width: _import_charts("message").timeline(frame, width),
        most=2_000,
    )


def causal(lake: TableSnapshot, message: MessageFacts) -> Figure:
    """The messages named by this one, and the messages that name it."""
    graph = causal_graph(TableWindow(lake), message)

    named_by: dict[str, list[str]] = {}
    for later, earlier in graph.edges:
        named_by.setdefault(later, []).append(text.name(earlier, 20))
    rows = (
        (
            node.generation,
            text.name(node.sds_id, 20),
            text.name(node.sender_id),
            node.kind.value,
            ", ".join(named_by.get(node.sds_id, [])[:5]) or "–",
        )
        for node in graph.nodes
    )
    absent = sum(not node.known for node in graph.nodes)
    return _make_figure(
        "Causal graph",
        f"{text.pluralize(len(graph.nodes), 'SDS messages')} around this one, {absent} of which did not arrive.",
        ("step", "SDS id", "sender", "state", "names"),
        rows,
        len(graph.nodes),
        lambda width: _import_charts("message").causal_graph(
            graph, width, lambda sds_id: link("/message", key=sds_id, **message.channel.query)
        ),
    )


def read_known_shares(lake: TableSnapshot, window: TimeWindow, key: ChannelFilter) -> Figure:
    """How much of a channel each participant knew over time, and its splits."""
    where = f"{key.where()} AND {CAME}"
    parameters = {**key.parameters, **window.bounds}
    (span,) = lake.select(
        f"SELECT min(event_time) AS first, max(event_time) AS last FROM sds_messages WHERE {where}",  # noqa: S608 - names of columns; values are bound
        parameters,
    )
    seconds = max(60, window.bin_s(span["first"], span["last"]))
    rows = read_contacts(lake, where, parameters, seconds * 1000).get(key, [])
    columns = sum_known(rows, seconds)

    names = ["time", "participant", "known", "settled"]
    participants = len({row["participant"] for row in rows})
    figure = _make_figure(
        "Share of the channel known",
        f"Marks of {text.pluralize(participants, 'participants')} over time, by the share of the others' messages"
        " known.",
        ("time (UTC)", "participant", "known", "of"),
        ((text.moment(time)[:19], text.name(who), has, of) for time, who, has, of in columns),
        len(columns),
        lambda _: _import_charts("incidents").known_shares(pd.DataFrame(columns, columns=names), seconds, window.now),
    )
    return replace(figure, notes=tuple(map(_describe_split, find_splits(lake, key, rows, seconds * 1000))))


def _describe_split(split: Split) -> str:
    since, shown, healed = (
        text.moment(None if ms is None else dt.datetime.fromtimestamp(ms / 1000, dt.UTC))[:19]
        for ms in (split.since_ms, split.shown_ms, split.healed_ms)
    )
    sides = "; ".join(", ".join(text.name(who, 24) for who in sorted(group)) for group in split.groups)
    ended = f"healed by {healed}" if split.healed_ms else f"last shown at {shown}"
    return f"Split since {since}, {ended}. The groups that lack each other's messages: {sides}."


PAGE_FIGURES: Mapping[str, tuple[Callable[[TableSnapshot, TimeWindow], Figure], tuple[str, ...]]] = {
    "verdicts": (verdicts, ("clock", "delivery_status")),
    "rate": (rate, ("clock", "delivered_messages")),
    "lag": (lag, ("pipeline_metrics",)),
}
"""Name in the address → figure, and the tables that it shows."""

MESSAGE_TABLES = (
    "clock", "delivery_status", "deliveries", "acks", "sds_messages", "envelopes", "refetch_requests",
    "repair_requests", "lost_dependencies", "store_presence", "sender_events", "incomplete_messages", "channel_events",
    "sightings",
)  # fmt: skip
MESSAGE_FIGURES: Mapping[str, Callable[[TableSnapshot, MessageFacts], Figure]] = {
    "timeline": time_line,
    "graph": causal,
}

_NAMES = frozenset({"data", "datasets", "domain", "sort", "values", "field"})
"""The parts of a specification that hold names, which may equal the name of a colour."""

WIDTHS = {"wide": 1_040, "narrow": 290}
"""Width of the plot, pixels."""


def svg(figure: Figure, dark: bool, width: str = "wide") -> bytes:
    """The picture as an SVG document, on no background."""
    from reliable_channel.analysis.report.drawing import svg as drawn

    colours = DARK if dark else {}
    spec: dict[str, Any] = _prepare(figure.draw(WIDTHS[width]).to_dict(), colours)
    ink, faint = (_prepare(colour, colours) for colour in ("#1d2630", "#55616e"))  # the page's
    spec["background"] = "transparent"  # the page's own
    # Room for text: a browser's fonts may be wider than those that were measured with.
    spec["padding"] = {"left": 18, "right": 18, "top": 6, "bottom": 6}
    spec.get("spec", spec)["width"] = WIDTHS[width]
    config = spec.setdefault("config", {})
    config.setdefault("axis", {}).update(labelColor=faint, titleColor=faint, domainColor=faint, tickColor=faint)
    config.setdefault("title", {}).update(color=ink, subtitleColor=faint)
    config.setdefault("legend", {}).update(labelColor=ink, titleColor=ink, columnPadding=26)
    if width == "narrow":
        _put_legends_in_one_column(spec)
    config.setdefault("header", {}).update(labelColor=ink, titleColor=ink)
    config.setdefault("text", {}).update(color=ink)
    return add_tooltips(drawn(spec)).encode()


def _prepare(value: Any, colours: Mapping[str, str]) -> Any:
    """The specification with colours of our own changed, and without the title, which the page has."""
    if isinstance(value, dict):
        # The page has the title; how to read the picture stays in it.
        kept = value | {"text": ""} if "subtitle" in value else value
        return {key: _prepare(inner, {} if key in _NAMES else colours) for key, inner in kept.items()}
    if isinstance(value, list):
        return [_prepare(inner, colours) for inner in value]
    if isinstance(value, str):
        return colours.get(value, value)
    return value


def _put_legends_in_one_column(value: Any) -> None:
    """Legends of one column, for narrow pages."""
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _put_legends_in_one_column(inner)
    if isinstance(value, dict) and isinstance(value.get("legend"), dict):
        value["legend"]["columns"] = 1


def _import_charts(name: str) -> Any:
    """A module of charts, imported when one is drawn: altair takes most of the time to start."""
    return import_module(f"reliable_channel.analysis.report.charts.{name}")


def _make_figure(
    title: str,
    alt: str,
    columns: tuple[str, ...],
    rows: Iterable[tuple[Any, ...]],
    count: int,
    draw: Callable[[int], Any],
    most: int = MOST_ROWS,
) -> Figure:
    """A figure with the first of ``count`` rows; no other is made, for there may be one for each channel and time."""
    return Figure(title, alt, columns, [*islice(rows, most)], draw, max(0, count - most))
