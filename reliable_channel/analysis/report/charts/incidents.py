"""Draws the charts of ``report/incidents.py``."""

from __future__ import annotations

import datetime as dt

import altair as alt
import pandas as pd

from reliable_channel.analysis.report import incidents
from reliable_channel.analysis.report.charts import look


def known_shares(
    bins: pd.DataFrame, seconds: int = incidents.EVERY_MS // 1000, until: dt.datetime | None = None
) -> look.Chart:
    """How much of a channel each participant knew over time: in a split, two groups of rows change at once. ``bins``:
    time, participant, known and settled (numbers of messages; :func:`incidents.list_known`); ``seconds``: the width of
    a bin; ``until``: where the axis of time ends, if not at the last bin."""
    title = "Share of the channel known"
    if bins.empty:
        return look.nothing(title, "No participant shows what it knows in this window.")
    shown = look.readable(bins, "participant")
    shown["until"] = shown["time"] + pd.Timedelta(seconds=seconds)
    shown["share"] = shown["known"] / shown["settled"]
    shown["hover"] = [
        f"{r.participant}: {r.known} of {r.settled} messages, {r.time:%Y-%m-%d %H:%M:%S}"
        for r in shown.itertuples(False)
    ]
    how = f"Of what the others sent in the 5 minutes before its newest message; one mark for {look.every(seconds)}."
    drawn = (
        alt.Chart(shown, title=look.title_params(title, how))
        .mark_rect(stroke="white", strokeWidth=0.4)
        .encode(
            **look.answers(shown),
            x=look.time_axis(pd.concat([shown["time"], shown["until"]]), until=until),
            x2="until:T",
            y=alt.Y("participant:N", title=None, sort="ascending"),
            color=alt.Color(
                "share:Q",
                scale=alt.Scale(
                    type="threshold", domain=[0.25, 0.5, 0.75], range=[look.VERMILION, look.ORANGE, look.SKY, look.BLUE]
                ),
                legend=alt.Legend(orient="bottom", title="share known", format=".0%"),
            ),
        )
    )
    return look.set_size(drawn, 40 + 24 * shown["participant"].nunique())


def store_answers(frame: pd.DataFrame) -> look.Chart:
    """What stores had, by the time of the messages (:func:`incidents.list_store_answers`)."""
    title = "What stores had"
    if frame.empty:
        return look.nothing(title, "No store was asked for a message of this window.")
    long = frame.melt(id_vars=["time"], value_vars=["present", "absent"], var_name="answer", value_name="messages")
    long = long[long["messages"] > 0].reset_index(drop=True)
    long.attrs["seconds"] = incidents.BIN_S
    return look.bars_over_time(long, "answer", "messages", title, "By the time of the message", "messages")


def new_names(frame: pd.DataFrame) -> look.Chart:
    """Senders of a single message over time (:func:`incidents.list_new_names`)."""
    title = "Senders of a single message"
    if frame.empty:
        return look.nothing(title, "No sender of this window sent a single message.")
    shown = frame.assign(kind="senders")
    shown.attrs["seconds"] = incidents.BIN_S
    return look.bars_over_time(shown, "kind", "senders", title, "By the time of the message", "senders")
