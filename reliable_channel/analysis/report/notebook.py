"""Sets up a notebook: opens the tables, offers the available channels and senders (as a form where the front end has
widgets), shows tables with units and charts without browser extension or network, and summarises the figures in a
sentence or beside those of another time."""

from __future__ import annotations

import datetime as dt
import os
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
import pandas as pd

from reliable_channel.analysis import conclusion as sentences
from reliable_channel.analysis import text
from reliable_channel.analysis.figures import COUNTED
from reliable_channel.analysis.report import delivery, loss, times
from reliable_channel.analysis.report.source import TableWindow, Window
from reliable_channel.core.errors import LocalError

DEMO = Path("build/demo/tables")
TABLES = "RELIABLE_CHANNEL_TABLES"
"""The environment variable that names the directory of the tables."""
MOST_ROWS = 50
LINE = 100
"""Columns of a printed sentence: front ends break longer ones inside words."""
SHARES = frozenset({"loss", "share", "change", "refused_share"})
"""Columns that are shares of one."""


def tables() -> Path:
    """The directory of :data:`TABLES`, or the demo's tables, here or one directory up."""
    named = os.environ.get(TABLES)
    if named:
        return Path(named)
    return DEMO if DEMO.exists() else Path("..") / DEMO


def open_tables(since: str = "", until: str = "", channel: str = "", sender: str = "") -> TableWindow:
    """The tables in a window (``times.py`` says how times are written), of a channel or sender where one is named;
    charts become pictures in the notebook, and frames tables with units.

    Raises ``EnvironmentFault`` when there are none."""
    alt.renderers.enable("svg")
    alt.data_transformers.disable_max_rows()
    ipython = sys.modules.get("IPython")  # loaded where a notebook runs; elsewhere it need not be installed
    if shell := ipython and ipython.get_ipython():
        shell.display_formatter.formatters["text/html"].for_type(pd.DataFrame, html)
    source = TableWindow(tables(), _parse_window(since, until, channel, sender))
    source.snapshot.require_any()
    return source


def _parse_window(since: str, until: str, channel: str, sender: str) -> Window:
    begin, end = (times.moment(text) if text.strip() else None for text in (since, until))
    return Window(begin, end, channel or None, sender_id=sender or None)


class WindowChoice:
    """What the tables of a window offer to choose from: a form where the front end has widgets, and else the table of
    :func:`choices`. What is chosen in the form changes the window for all cells that run after that."""

    def __init__(self, source: TableWindow) -> None:
        self._offered = choices(TableWindow(source.snapshot))
        self._form = _build_form(source, self._offered)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, Any]:
        """Both: a front end shows the first kind that it can."""
        table = {"text/html": html(self._offered), "text/plain": str(self._offered)}
        return table if self._form is None else {**self._form._repr_mimebundle_(), **table}


def _build_form(source: TableWindow, offered: pd.DataFrame) -> Any:
    """The widgets, which show the window of ``source`` and change it; None without the package ipywidgets."""
    try:
        import ipywidgets
    except ModuleNotFoundError:
        return None

    def list_names(column: str, chosen: str | None) -> Any:
        names = offered.groupby(column)["messages"].sum().nlargest(MOST_ROWS).index
        options = {"": "all", **{name: text.name(name) for name in names if name}}
        if chosen:
            options[chosen] = text.name(chosen)
        return ipywidgets.Dropdown(
            description=column, options=[(label, name) for name, label in options.items()], value=chosen or ""
        )

    def enter_time(name: str, chosen: dt.datetime | None) -> Any:
        return ipywidgets.Text(
            description=name, placeholder="2026-11-01T12:00 or 24h", value=chosen.isoformat() if chosen else "",
            continuous_update=False,
        )  # fmt: skip

    def apply(_: Any) -> None:
        try:
            source.choose(_parse_window(**{name: field.value for name, field in fields.items()}))
            messages = text.pluralize(int(choices(source)["messages"].sum()), "messages")
            outcome.value = f"{messages}. Run the cells below to see what became of them."
        except LocalError as error:
            outcome.value = str(error)

    fields = {
        "since": enter_time("since", source.window.since),
        "until": enter_time("until", source.window.until),
        "channel": list_names("channel", source.window.channel_id),
        "sender": list_names("sender", source.window.sender_id),
    }
    outcome = ipywidgets.Label("A choice here counts for the cells below: run them again after it.")
    for field in fields.values():
        field.observe(apply, "value")
    rows = ipywidgets.HBox([*fields.values()], layout=ipywidgets.Layout(flex_flow="row wrap"))
    return ipywidgets.VBox([ipywidgets.HTML(html(offered)), rows, outcome])


def choices(source: TableWindow) -> pd.DataFrame:
    """The possible arguments of :func:`open_tables`: the channels and senders of the window with their messages, and
    the time from the first of them to the last."""
    return source.query(
        f"""
        SELECT channel_id AS channel, sender_id AS sender, count(*) AS messages, min(first_seen) AS since,
               max(first_seen) AS until
        FROM delivery_status WHERE {COUNTED} GROUP BY ALL ORDER BY channel, messages DESC, sender
        """  # noqa: S608 - constants of our own
    )


def html(frame: pd.DataFrame) -> str:
    """A frame as a table with units and without an index of mere numbers; the first :data:`MOST_ROWS` rows."""
    shown = frame.head(MOST_ROWS)
    index = frame.index.dtype == object
    names = [str(name) for name in shown.columns]
    writers = [_choose_writer(name, shown[column]) for name, column in zip(names, shown.columns, strict=True)]
    headings = [name.removesuffix("_ms").replace("_", " ") for name in names]
    rows = [
        [
            *([str(label)] if index else []),
            *(write(_to_plain(value)) for write, value in zip(writers, row, strict=True)),
        ]
        for label, row in zip(shown.index, shown.itertuples(index=False, name=None), strict=True)
    ]
    head = "".join(f"<th>{escape(heading)}</th>" for heading in ([""] if index else []) + headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    more = len(frame) - len(shown)
    caption = f"<caption>{text.pluralize(more, 'rows')} more</caption>" if more else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _choose_writer(name: str, values: pd.Series) -> Callable[[Any], str]:
    """How the cells of a column are written, by its name and type."""
    if name.endswith("_ms"):
        return text.duration
    if name in SHARES or name.startswith("loss_"):
        return text.percent
    if name.endswith("_bytes"):
        return text.size
    if pd.api.types.is_datetime64_any_dtype(values):
        return text.time
    if pd.api.types.is_bool_dtype(values):
        return str
    return text.number if pd.api.types.is_numeric_dtype(values) else _write_word


def _write_word(value: Any) -> str:
    if isinstance(value, (list, tuple, np.ndarray)):
        return ", ".join(text.name(one) for one in value) or text.DASH
    return text.number(value) if isinstance(value, (int, float)) else text.name(value)


def _to_plain(value: Any) -> Any:
    if isinstance(value, (list, tuple, np.ndarray)):
        return value
    return None if pd.isna(value) else value


def conclusion(source: TableWindow) -> str:
    """A summary of the window's figures in one to three sentences, in lines that a notebook shows whole."""
    totals = delivery.totals(source).to_dict("records")[0]
    channels = delivery.by_channel(source).to_dict("records")
    said = sentences.conclusion(totals, channels, loss.causes(source).to_dict("records"))
    return textwrap.fill(said or "No message of this window is settled.", LINE, break_long_words=False)


def split_window(source: TableWindow) -> tuple[TableWindow, TableWindow]:
    """The two halves of the window, with its channel and sender: by the time between its first message and its last."""
    times = source.query("SELECT min(first_seen) AS first, max(first_seen) AS last FROM delivery_status").iloc[0]
    if pd.isna(times["first"]):
        return source, source
    middle = (times["first"] + (times["last"] - times["first"]) / 2).floor("us")
    first, second = replace(source.window, until=middle), replace(source.window, since=middle)
    return TableWindow(source.snapshot, first), TableWindow(source.snapshot, second)


def compare(first: TableWindow, second: TableWindow) -> pd.DataFrame:
    """Two windows beside each other, a row per channel: messages and loss (share of what is settled) in each, and how
    the loss changed; the channel that got worst first. A channel that only one of them has keeps its row."""
    key = ["content_topic", "channel_id"]
    sides = [delivery.by_channel(source)[[*key, "messages", "loss"]] for source in (first, second)]
    both = sides[0].merge(sides[1], how="outer", on=key, suffixes=("_first", "_second"))
    both["change"] = both["loss_second"] - both["loss_first"]
    return both.sort_values(["change", *reversed(key)], ascending=[False, True, True], ignore_index=True)
