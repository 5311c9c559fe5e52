"""Sets up a notebook: which tables to read, and charts that need neither a browser extension nor a network."""

from __future__ import annotations

import os
from pathlib import Path

import altair as alt

from reliable_channel.analysis.report import times
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
