"""Sets up a notebook: which tables to read, charts that need neither a browser extension nor a network, and what the
figures come to: in a sentence, or beside those of another time."""

from __future__ import annotations

import os
from pathlib import Path

import altair as alt
import pandas as pd

from reliable_channel.analysis import conclusion as sentences
from reliable_channel.analysis.report import delivery, loss, times
from reliable_channel.analysis.report.source import TableWindow, Window

DEMO = Path("build/demo/tables")
TABLES = "RELIABLE_CHANNEL_TABLES"
"""The environment variable that names the directory of the tables."""


def tables() -> Path:
    """The directory of :data:`TABLES`, or what the demo left, here or one directory up."""
    named = os.environ.get(TABLES)
    if named:
        return Path(named)
    return DEMO if DEMO.exists() else Path("..") / DEMO


def open_tables(since: str | None = None, until: str | None = None, channel: str | None = None) -> TableWindow:
    """The tables in a window (``times.py`` says how times are written); charts become pictures in the notebook.

    Raises ``EnvironmentFault`` when there are none."""
    alt.renderers.enable("svg")
    alt.data_transformers.disable_max_rows()
    window = Window(times.moment(since) if since else None, times.moment(until) if until else None, channel)
    source = TableWindow(tables(), window)
    source.require_any()
    return source


def conclusion(source: TableWindow) -> str:
    """What the figures of the window come to, in one to three sentences."""
    totals = delivery.totals(source).to_dict("records")[0]
    channels = delivery.by_channel(source).to_dict("records")
    said = sentences.conclusion(totals, channels, loss.causes(source).to_dict("records"))
    return said or "No message of this window is settled."


def compare(first: TableWindow, second: TableWindow) -> pd.DataFrame:
    """Two windows beside each other, a row per channel: messages and loss (share of what is settled) in each, and how
    the loss changed; the channel that got worst first. A channel that only one of them has keeps its row."""
    key = ["content_topic", "channel_id"]
    sides = [delivery.by_channel(source)[[*key, "messages", "loss"]] for source in (first, second)]
    both = sides[0].merge(sides[1], how="outer", on=key, suffixes=("_first", "_second"))
    both["change"] = both["loss_second"] - both["loss_first"]
    return both.sort_values(["change", "channel_id"], ascending=[False, True], ignore_index=True)
