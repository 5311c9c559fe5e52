"""Draws verdicts by cause over time, stacked: delivered messages at the bottom, missing ones above."""

from __future__ import annotations

import datetime as dt

import pandas as pd

from reliable_channel.analysis.report.charts.look import (
    BLUE,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    Chart,
    bars_over_time,
    nothing,
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
    shown = bins.assign(name=named)
    shown["link"] = shown["link"].where(shown["name"] != OTHERS)
    reds = [name for name in (*few, OTHERS) if name in named]
    colours = {"delivered": BLUE, "delivered late": SKY, **dict(zip(reds, _MISSING, strict=False))}
    colours |= {"not known yet": _UNKNOWN}
    shown.attrs = {"seconds": seconds, "until": until}
    colours = {name: colour for name, colour in colours.items() if name in named}
    return bars_over_time(shown, "name", "messages", title, "By the time of the first trace", "messages", colours)
