"""The pictures of the delivery notebook (altair; a development dependency, so this module is not part of the report).

One look for all: readable in print, colours that survive colour blindness and grey paper.
"""

from __future__ import annotations

import altair as alt
import pandas as pd

WIDTH, HEIGHT = 640, 220
SCHEME = "tableau10"


def outcomes(by_channel: pd.DataFrame) -> alt.Chart:
    """Stacked bars: what became of the messages of each channel (:func:`frames.delivery_by_channel`)."""
    plain = by_channel.assign(plain=by_channel["delivered"] - by_channel["repaired"])
    names = {"plain": "delivered", "repaired": "delivered with rebuilt segments", "incomplete": "incomplete"}
    long = plain.melt("channel_id", list(names), "outcome", "messages").replace({"outcome": names})
    order = list(names.values())
    return (
        alt.Chart(long, title="What became of the messages seen here")
        .mark_bar()
        .encode(
            y=alt.Y("channel_id:N", title=None),
            x=alt.X("messages:Q", title="messages"),
            color=alt.Color(
                "outcome:N",
                sort=order,
                scale=alt.Scale(domain=order, range=["#4c78a8", "#72b7b2", "#e45756"]),
                legend=alt.Legend(orient="bottom", title=None),
            ),
            order=alt.Order("color_outcome_sort_index:Q"),
        )
        .properties(width=WIDTH, height=40 + 28 * len(by_channel))
    )


def over_time(deliveries: pd.DataFrame) -> alt.Chart:
    """Bars per channel over event time (:func:`frames.deliveries_over_time`)."""
    return (
        alt.Chart(deliveries, title="Messages delivered over time")
        .mark_bar()
        .encode(
            x=alt.X("time:T", title="event time (UTC)", scale=alt.Scale(type="utc")),
            y=alt.Y("messages:Q", title="messages"),
            color=alt.Color(
                "channel_id:N", scale=alt.Scale(scheme=SCHEME), legend=alt.Legend(orient="bottom", title=None)
            ),
        )
        .properties(width=WIDTH, height=HEIGHT)
    )


def latency_distribution(latencies: pd.DataFrame, by: str, title: str) -> alt.Chart:
    """The share of rows whose ``latency_ms`` is at most x, one line per value of column ``by``; x is logarithmic."""
    frame = latencies.assign(latency_ms=latencies["latency_ms"].clip(lower=1))
    frame = frame.sort_values("latency_ms")
    frame["share"] = frame.groupby(by)["latency_ms"].rank(method="max", pct=True)
    return (
        alt.Chart(frame, title=title)
        .mark_line(interpolate="step-after")
        .encode(
            x=alt.X("latency_ms:Q", title="ms", scale=alt.Scale(type="log")),
            y=alt.Y("share:Q", title="share at most", axis=alt.Axis(format="%")),
            color=alt.Color(f"{by}:N", scale=alt.Scale(scheme=SCHEME), legend=alt.Legend(orient="bottom", title=None)),
        )
        .properties(width=WIDTH, height=HEIGHT)
    )


def losses_over_time(losses: pd.DataFrame) -> alt.Chart:
    """A mark per loss, by channel and event time (:func:`frames.losses`); bursts show as clusters."""
    return (
        alt.Chart(losses, title="What was given up, and when")
        .mark_tick(thickness=2, size=18)
        .encode(
            x=alt.X("time:T", title="event time (UTC)", scale=alt.Scale(type="utc")),
            y=alt.Y("channel_id:N", title=None),
            color=alt.Color(
                "what:N",
                scale=alt.Scale(range=["#e45756", "#b279a2"]),
                legend=alt.Legend(orient="bottom", title=None),
            ),
        )
        .properties(width=WIDTH, height=160)
    )
