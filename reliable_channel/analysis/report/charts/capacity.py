"""Draws the charts of ``report/capacity.py``."""

from __future__ import annotations

import altair as alt
import pandas as pd

from reliable_channel.analysis.report.capacity import PHASES
from reliable_channel.analysis.report.charts import look

NO_METRICS = "There is no row of pipeline_metrics in this window (it goes by the wall clock)."
WALL_CLOCK = "wall clock (UTC)"


def _lines(frame: pd.DataFrame, title: alt.TitleParams, y: alt.Y) -> look.Chart:
    names = list(dict.fromkeys(frame["query"]))
    chart = (
        alt.Chart(frame, title=title)
        .mark_line(point=alt.OverlayMarkDef(size=28), strokeWidth=1.5)
        .encode(x=look.time_axis(frame["time"], title=WALL_CLOCK), y=y, color=look.colours_by_name("query", names))
    )
    return look.set_size(chart)


def throughput(frame: pd.DataFrame) -> look.Chart:
    """Rows per second of every micro-batch (:func:`capacity.throughput`)."""
    title = "Rows per second"
    if frame.empty:
        return look.nothing(title, NO_METRICS)
    y = alt.Y("rows_per_s:Q", title="rows/s (logarithmic)", scale=alt.Scale(type="log"))
    return _lines(frame, look.title_params(title, "While the micro-batch ran; small micro-batches cost more a row."), y)


def lag(frame: pd.DataFrame) -> look.Chart:
    """How far behind each query was (:func:`capacity.lag`)."""
    title = "Lag"
    if frame.empty:
        return look.nothing(title, NO_METRICS)
    units = list(dict.fromkeys(frame["unit"]))
    names = list(dict.fromkeys(frame["query"]))
    shown = frame.assign(
        hover=[f"{r.query}: {r.lag:,.0f} {r.unit} behind, {r.time:%Y-%m-%d %H:%M:%S}" for r in frame.itertuples(False)]
    )
    chart = (
        alt.Chart(shown)
        .mark_line(point=alt.OverlayMarkDef(size=28), strokeWidth=1.5)
        .encode(
            **look.answers(shown),
            x=look.time_axis(frame["time"], title=WALL_CLOCK),
            y=alt.Y("lag:Q", title="behind"),
            color=look.colours_by_name("query", names),
            row=alt.Row("unit:N", sort=units, title=None, header=alt.Header(labelAngle=0, labelAlign="left")),
        )
        .resolve_scale(y="independent")
        .properties(
            title=look.title_params(title, "What was unread when the micro-batch ended: Kafka records, or commits.")
        )
    )
    return look.set_size(chart, 130, 560)


def state(frame: pd.DataFrame) -> look.Chart:
    """The size of the state (:func:`capacity.state`)."""
    title = "Size of the state"
    if frame.empty:
        return look.nothing(title, NO_METRICS)
    shown = frame.assign(mib=(frame["memory_bytes"].fillna(0) + frame["disk_bytes"].fillna(0)) / 2**20)
    y = alt.Y("mib:Q", title="MiB, memory and disk")
    return _lines(shown, look.title_params(title, "It levels off when timers close keys as fast as new ones come."), y)


def phases(frame: pd.DataFrame) -> look.Chart:
    """The share of time of each phase (:func:`capacity.phases`)."""
    title = "Where the time of a micro-batch goes"
    if frame.empty:
        return look.nothing(title, NO_METRICS)
    names = [phase for phase in PHASES.values() if phase in set(frame["phase"])]
    y = alt.Y("query:N", title=None)
    x = alt.X("share:Q", title="share of the time", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1]))
    subtitle = "Share of the time of all micro-batches of a query."
    chart = look.stacked_bars(frame, look.title_params(title, subtitle), "phase", names, y=y, x=x)
    return look.set_size(chart, 40 + 30 * frame["query"].nunique())


def cost(frame: pd.DataFrame) -> look.Chart:
    """The cost of a record and of a delivered message (:func:`capacity.cost`)."""
    title = "Cost of one message"
    if frame.empty:
        return look.nothing(title, NO_METRICS)
    names = {"ms_per_record": "per record read", "ms_per_message": "per message delivered"}
    long = frame.melt(["query"], list(names), "of", "ms").replace({"of": names}).dropna()
    base = alt.Chart(long, title=look.title_params(title, "Time during which micro-batches ran, shared out."))
    order = list(frame["query"])
    position = {
        "y": alt.Y("query:N", sort=order, title=None),
        "yOffset": alt.YOffset("of:N", sort=list(names.values())),
    }
    bars = base.mark_bar().encode(
        **position, x=alt.X("ms:Q", title="ms"), color=look.colours_by_name("of", list(names.values()))
    )
    numbers = base.mark_text(align="left", dx=3, fontSize=10).encode(
        **position, x="ms:Q", text=alt.Text("ms:Q", format=",.1f")
    )
    return look.set_size(bars + numbers, 40 + 40 * len(order))
