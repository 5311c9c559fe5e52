"""Draws the charts of ``report/incidents.py``."""

from __future__ import annotations

import pandas as pd

from reliable_channel.analysis.report import incidents
from reliable_channel.analysis.report.charts import known
from reliable_channel.analysis.report.charts.look import Chart, bars_over_time, nothing


def known_shares(frame: pd.DataFrame) -> Chart:
    """How much of a channel each participant knew over time (:func:`incidents.list_known`)."""
    return known.chart(frame, incidents.EVERY_MS // 1000)


def store_answers(frame: pd.DataFrame) -> Chart:
    """What stores had, by the time of the messages (:func:`incidents.list_store_answers`)."""
    title = "What stores had"
    if frame.empty:
        return nothing(title, "No store was asked for a message of this window.")
    long = frame.melt(id_vars=["time"], value_vars=["present", "absent"], var_name="answer", value_name="messages")
    long = long[long["messages"] > 0].reset_index(drop=True)
    long.attrs["seconds"] = incidents.BIN_S
    return bars_over_time(long, "answer", "messages", title, "By the time of the message", "messages")


def new_names(frame: pd.DataFrame) -> Chart:
    """Senders of a single message over time (:func:`incidents.list_new_names`)."""
    title = "Senders of a single message"
    if frame.empty:
        return nothing(title, "Every sender of this window sent more than one message.")
    shown = frame.assign(kind="senders")
    shown.attrs["seconds"] = incidents.BIN_S
    return bars_over_time(shown, "kind", "senders", title, "By the time of the message", "senders")
