"""Draws verdicts by cause over time, stacked: delivered messages at the bottom, missing ones above."""

from __future__ import annotations

import datetime as dt

import altair as alt
import pandas as pd

from reliable_channel.analysis.report.charts.look import (
    BLUE,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Chart,
    answers,
    colours_by_name,
    every,
    nothing,
    pluralize,
    set_size,
    time_axis,
    title_params,
    whole_numbers,
)

MOST_CAUSES = 4
OTHERS = "missing: other causes"
_MISSING = (VERMILION, ORANGE, PURPLE, "#A6761D", "#F0C0A0")
_UNKNOWN = "#BDBDBD"


def chart(bins: pd.DataFrame, seconds: int, until: dt.datetime | None = None) -> Chart:
    """``bins``: time, verdict, outcome (verdict and cause in words), messages, link (to the list of these messages);
    ``seconds``: the width of a bin; ``until``: where the axis of time ends, if not at the last bar."""
    title = "Verdicts over time"
    if bins.empty:
        return nothing(title, "No message is judged in this window.")
    missing = bins[bins["verdict"] == "missing"].groupby("outcome")["messages"].sum()
    kept = list(missing.sort_values(ascending=False, kind="stable").index)
    few = kept if len(kept) <= MOST_CAUSES + 1 else kept[:MOST_CAUSES]

    def label(verdict: str, outcome: str) -> str:
        if verdict == "unknown":
            return "not known yet"
        return outcome if verdict == "delivered" or outcome in few else OTHERS

    named = [label(verdict, outcome) for verdict, outcome in zip(bins["verdict"], bins["outcome"], strict=True)]
    together = {"messages": ("messages", "sum"), "link": ("link", "first")}
    shown = bins.assign(name=named).groupby(["time", "name"], as_index=False).agg(**together)
    shown["link"] = shown["link"].where(shown["name"] != OTHERS)
    present = set(shown["name"])
    reds = [name for name in [*few, OTHERS] if name in present]
    order = [name for name in ("delivered", "delivered late", *reds, "not known yet") if name in present]
    colours = {"delivered": BLUE, "delivered late": SKY, "not known yet": _UNKNOWN}
    colours |= dict(zip(reds, _MISSING, strict=False))
    shown["order"] = shown["name"].map({name: number for number, name in enumerate(order)})
    shown = shown.sort_values(["time", "order"], ignore_index=True)
    shown["high"] = shown.groupby("time")["messages"].cumsum()
    shown["low"] = shown["high"] - shown["messages"]
    shown["until"] = shown["time"] + pd.Timedelta(seconds=seconds)
    shown["hover"] = [
        f"{r.name}: {pluralize(r.messages, 'messages')}, {r.time:%Y-%m-%d %H:%M:%S}" for r in shown.itertuples(False)
    ]
    drawn = (
        alt.Chart(shown, title=title_params(title, f"By the time of the first trace; one bar for {every(seconds)}."))
        .mark_rect(stroke="white", strokeWidth=0.4)
        .encode(
            **answers(shown),
            x=time_axis(pd.concat([shown["time"], shown["until"]]), until=until),
            x2="until:T",
            y=alt.Y("low:Q", title="messages", axis=whole_numbers(shown["high"])),
            y2="high:Q",
            color=colours_by_name("name", order, [colours[name] for name in order]),
        )
    )
    return set_size(drawn)
