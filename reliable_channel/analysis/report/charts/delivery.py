"""Draws the charts of ``report/delivery.py`` and ``report/depth.py``."""

from __future__ import annotations

import altair as alt
import pandas as pd

from reliable_channel.analysis.report.charts import look

OUTCOMES = {"in time": look.BLUE, "late": look.SKY, "unknown": look.GREY, "missing": look.VERMILION}
MOST_CHANNELS = 15


def outcomes(by_channel: pd.DataFrame) -> look.Chart:
    """The outcome of the messages of each channel (:func:`delivery.by_channel`)."""
    title = "What became of the messages, by channel"
    if by_channel.empty:
        return look.nothing(title, "No message is known in this window.")
    frame = look.readable(by_channel.nlargest(MOST_CHANNELS, "messages", keep="first"), "channel_id")
    frame["in time"] = frame["delivered"] - frame["late"]
    long = frame.melt(["channel_id", "content_topic"], list(OUTCOMES), "outcome", "count")
    long = long.groupby(["channel_id", "outcome"], as_index=False)["count"].sum()
    how = "Late: it arrived after it had been given up. Unknown: it cannot be decided."
    if len(by_channel) > MOST_CHANNELS:
        how += f" The {MOST_CHANNELS} of {len(by_channel):,} with most messages."
    y, x = alt.Y("channel_id:N", title=None, sort="-x"), alt.X("count:Q", title="messages")
    chart = look.stacked_bars(
        long, look.title_params(title, how), "outcome", [*OUTCOMES], [*OUTCOMES.values()], y=y, x=x
    )
    return look.set_size(chart, 40 + 22 * frame["channel_id"].nunique())


def rate(frame: pd.DataFrame) -> look.Chart:
    """Messages delivered over time, stacked (:func:`delivery.rate`)."""
    title = "Messages delivered over time"
    if frame.empty:
        return look.nothing(title, "Nothing was delivered in this window.")
    shown = look.readable(look.topmost(frame, "name", "messages"), "name")
    shown.attrs = frame.attrs
    return look.bars_over_time(shown, "name", "messages", title, "By the time of delivery", "messages")


def curve(frame: pd.DataFrame, title: str, how_to_read: str) -> look.Chart:
    """The share of messages that took at most a given time (``*_curve``), by name."""
    if frame.empty:
        return look.nothing(title, "Nothing of this kind was seen in this window.")
    shown = look.readable(frame.assign(seconds=frame["ms"].clip(lower=1) / 1000), "name")
    names = list(dict.fromkeys(shown["name"]))
    chart = (
        alt.Chart(shown, title=look.title_params(title, how_to_read))
        .mark_line(interpolate="monotone", strokeWidth=2)
        .encode(
            x=alt.X("seconds:Q", title="seconds (logarithmic)", scale=alt.Scale(type="log", nice=True)),
            y=alt.Y("share:Q", title="share that took at most so long", axis=alt.Axis(format="%")),
            color=look.colours_by_name("name", names),
            strokeDash=alt.StrokeDash("name:N", sort=names, legend=None),
            order="share:Q",
        )
    )
    return look.set_size(chart)


def depth(frame: pd.DataFrame) -> look.Chart:
    """The longest causal chain over time (:func:`depth.depth_over_time`)."""
    title = "Causal depth over time"
    if frame.empty:
        return look.nothing(title, "No SDS message with a causal history was seen in this window.")
    shown = look.readable(look.keep_topmost(frame, "channel_id", "depth"), "channel_id")
    names = list(dict.fromkeys(shown["channel_id"]))
    chart = (
        alt.Chart(
            shown, title=look.title_params(title, "Messages in the longest chain in which each names the one before.")
        )
        .mark_line(interpolate="step-after", strokeWidth=2)
        .encode(
            x=look.time_axis(shown["time"]),
            y=alt.Y("depth:Q", title="messages in the chain"),
            color=look.colours_by_name("channel_id", names),
            strokeDash=alt.StrokeDash("channel_id:N", sort=names, legend=None),
        )
    )
    return look.set_size(chart)


def quantiles(frame: pd.DataFrame, title: str, what: str) -> look.Chart:
    """Median, 90 % and 99 % as points on one line per name (the frames of latencies in ``delivery``)."""
    if frame.empty:
        return look.nothing(title, "Nothing of this kind was seen in this window.")
    shown = look.readable(frame.head(MOST_CHANNELS), "name")
    marks = {"p50_ms": "median", "p90_ms": "90 %", "p99_ms": "99 %"}
    long = shown.melt(["name", what], list(marks), "mark", "ms").replace({"mark": marks})
    long["seconds"] = long["ms"].clip(lower=1) / 1000
    names = list(shown["name"])
    base = alt.Chart(long, title=look.title_params(title, "Half, nine of ten and 99 of 100 took at most so long."))
    scale = alt.Scale(type="log")
    lines = base.mark_line(color="#BBBBBB", strokeWidth=2).encode(
        y=alt.Y("name:N", sort=names, title=None), x=alt.X("seconds:Q", scale=scale), detail="name:N"
    )
    points = base.mark_point(filled=True, size=70, opacity=1).encode(
        y=alt.Y("name:N", sort=names, title=None),
        x=alt.X("seconds:Q", title="seconds (logarithmic)", scale=scale),
        color=look.colours_by_name("mark", list(marks.values()), [look.BLUE, look.ORANGE, look.BLACK]),
        shape=alt.Shape("mark:N", sort=list(marks.values()), legend=None),
    )
    return look.set_size(lines + points, 40 + 22 * len(names))
