"""Draws how much of a channel each participant knew, over time: in a split, two groups of rows change at once."""

from __future__ import annotations

import datetime as dt

import altair as alt
import pandas as pd

from reliable_channel.analysis.report.charts.look import (
    BLUE,
    ORANGE,
    SKY,
    VERMILION,
    Chart,
    answers,
    every,
    nothing,
    readable,
    set_size,
    time_axis,
    title_params,
)


def chart(bins: pd.DataFrame, seconds: int, until: dt.datetime | None = None) -> Chart:
    """``bins``: time, participant, known and settled (numbers of messages); ``seconds``: the width of a bin; ``until``:
    where the axis of time ends, if not at the last bin."""
    title = "Share of the channel known"
    if bins.empty:
        return nothing(title, "No participant shows what it knows in this window.")
    shown = readable(bins, "participant")
    shown["until"] = shown["time"] + pd.Timedelta(seconds=seconds)
    shown["share"] = shown["known"] / shown["settled"]
    shown["hover"] = [
        f"{r.participant}: {r.known} of {r.settled} messages, {r.time:%Y-%m-%d %H:%M:%S}"
        for r in shown.itertuples(False)
    ]
    how = f"Of what the others sent in the 5 minutes before its newest message; one mark for {every(seconds)}."
    drawn = (
        alt.Chart(shown, title=title_params(title, how))
        .mark_rect(stroke="white", strokeWidth=0.4)
        .encode(
            **answers(shown),
            x=time_axis(pd.concat([shown["time"], shown["until"]]), until=until),
            x2="until:T",
            y=alt.Y("participant:N", title=None, sort="ascending"),
            color=alt.Color(
                "share:Q",
                scale=alt.Scale(type="threshold", domain=[0.25, 0.5, 0.75], range=[VERMILION, ORANGE, SKY, BLUE]),
                legend=alt.Legend(orient="bottom", title="share known", format=".0%"),
            ),
        )
    )
    return set_size(drawn, 40 + 24 * shown["participant"].nunique())
