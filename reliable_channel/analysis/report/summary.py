"""Collects the report as one value of plain JSON types, which ``--json`` prints and terminal, page and CSV show.

docs/report.md documents its shape, and ``schema`` names it. Fields are only added; one is renamed or changes its
meaning only under a new ``schema``. Strings from the network are unchanged: the code that shows them must escape them.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pandas as pd

from reliable_channel.analysis import text
from reliable_channel.analysis.conclusion import conclusion
from reliable_channel.analysis.figures import CLAIMED_BY_ONE, read_clock
from reliable_channel.analysis.report import capacity, delivery, loss, quarantine
from reliable_channel.analysis.report.source import TableWindow

SCHEMA = "reliable-channel-report/1"
_VERDICT_MS = 15 * 60_000
"""How long after a message its verdict is given at the latest, while rounds of verdicts go on."""
MOST_ROWS = 1_000
"""Rows of a section; ``left_out`` counts the others."""

_FRAMES: dict[str, Callable[[TableWindow], pd.DataFrame]] = {
    "channels": delivery.by_channel,
    "causes": loss.causes,
    "causes_by_channel": loss.causes_by_channel,
    "missing": partial(loss.missing, limit=MOST_ROWS),
    "latency_by_channel": delivery.latency,
    "odd_timestamps": delivery.odd_timestamps,
    "acknowledgements_by_channel": delivery.acknowledgement_latency,
    "parity": loss.parity,
    "segment_index": loss.by_segment_index,
    "incomplete": partial(loss.incomplete, limit=MOST_ROWS),
    "stores": loss.stores,
    "store_disagreement": partial(loss.store_disagreement, limit=MOST_ROWS),
    "refetch": loss.refetch,
    "refetch_outcome": loss.refetch_outcome,
    "quarantine": quarantine.reasons,
    "source_gaps": quarantine.source_gaps,
    "vantages": quarantine.vantages,
    "pipeline": capacity.summary,
    "cost": capacity.cost,
}
SECTIONS = (*_FRAMES,)
"""The sections that are lists of rows."""


def collect(source: TableWindow, now: dt.datetime) -> dict[str, Any]:
    """The report about the window of ``source``, without thresholds."""
    totals = _take_row(delivery.totals(source))
    totals["delivered_rows"] = _count_delivered(source)
    totals["newest_trace"] = _find_newest_trace(source)
    latency = _take_row(delivery.overall_latency(source))
    records = _take_row(quarantine.share(source))
    window = source.window
    frames = {name: read(source) for name, read in _FRAMES.items()}
    counts = {name: len(frame) for name, frame in frames.items()} | {"missing": totals["missing"]}
    return {
        "schema": SCHEMA,
        "generated_at": _to_plain(now),
        "data_dir": source.snapshot.data_dir,
        "window": {
            "from": _to_plain(window.since),
            "to": _to_plain(window.until),
            "channel": window.channel_id,
            "content_topic": window.content_topic,
        },
        "totals": totals,
        "latency_ms": {
            "messages": latency["messages"],
            **{k: latency[f"{k}_ms"] for k in ("p50", "p90", "p99", "max")},
        },
        "records": {"records": records["records"], "refused": records["refused"], "refused_share": records["share"]},
        **{name: rows(frames[name]) for name in SECTIONS},
        "left_out": {name: count - MOST_ROWS for name, count in counts.items() if count > MOST_ROWS},
        "conclusion": conclusion(totals, frames["channels"].to_dict("records"), rows(frames["causes"])),
        "notes": [
            *_write_notes(source, totals, frames["causes"]),
            *_note_timestamps(frames["odd_timestamps"]),
        ],
    }


def _count_delivered(source: TableWindow) -> int:
    """The delivered messages of the window, with or without a verdict: its deliveries, without those of messages that
    were first seen before it."""
    in_window, values = source.window.where("first_seen")
    counted = source.query(f"SELECT count(*) AS messages FROM delivered_messages WHERE {in_window}", **values)  # noqa: S608 - names of columns; values are bound
    return int(counted["messages"][0])


def _find_newest_trace(source: TableWindow) -> str | None:
    """When the newest trace of a message was seen, with or without a verdict; ISO 8601 UTC."""
    frame = source.query(
        """SELECT max(seen) AS newest FROM (SELECT max(first_seen) AS seen FROM delivery_status
           UNION ALL SELECT max(event_time) FROM delivered_messages UNION ALL SELECT max(event_time) FROM deliveries)"""
    )
    newest: str | None = _take_row(frame)["newest"]
    return newest


def _write_notes(source: TableWindow, totals: dict[str, Any], causes: pd.DataFrame) -> list[str]:
    """Facts that a reader must know before trusting the numbers."""
    notes = []
    if not totals["messages"] and totals["delivered_rows"]:
        notes.append(
            "There are no verdicts in this window, so that nothing can be called missing: "
            "`reliable-channel run --continuous` gives them once a minute, `run --once --verdicts` at its end."
        )
    elif not totals["messages"]:
        notes.append("No message is known in this window." + _describe_span(source))
    elif unjudged := _count_unjudged(source):
        notes.append(
            f"There is no verdict on {text.pluralize(unjudged, 'newer messages')}, delivered"
            f" {text.duration(_VERDICT_MS)} ago or earlier: no round of verdicts has ended since, and no loss since is"
            " counted."
        )
    if totals["unknown"]:
        unknown = causes[(causes["verdict"] == "unknown") & (causes["cause"] != CLAIMED_BY_ONE)]
        why = ", ".join(f"{row.messages:,} {text.words(row.cause)}" for row in unknown.itertuples())
        notes.append(
            f"Neither delivered nor missing, but unknown: {text.pluralize(totals['unknown'], 'messages')} ({why})."
        )
    if totals["claimed"]:
        notes.append(
            f"No figure of messages counts {text.pluralize(totals['claimed'], 'more ids')} that one participant alone"
            " claims."
        )
    unexplained = causes.loc[(causes["verdict"] == "missing") & (causes["cause"] == loss.UNEXPLAINED), "messages"].sum()
    if unexplained:
        queried = source.snapshot.select("SELECT 1 FROM store_presence LIMIT 1")  # at any time: a back-fill asks later
        why = "no evidence names one" if queried else "no store node was asked for them"
        notes.append(f"Of {text.pluralize(unexplained, 'missing messages')} the cause is not known: {why}.")
    return notes


def _count_unjudged(source: TableWindow) -> int:
    """The delivered messages first seen after all that have a verdict, and a while before the recorded clock."""
    clock = read_clock(source.snapshot)
    if clock is None:
        return 0
    counted = source.query(
        """SELECT count(*) AS messages FROM delivered_messages WHERE first_seen <= $until
           AND first_seen > (SELECT max(first_seen) FROM delivery_status WHERE verdict = 'delivered')""",
        until=clock - dt.timedelta(milliseconds=_VERDICT_MS),
    )
    return int(counted["messages"][0])


def _note_timestamps(odd: pd.DataFrame) -> list[str]:
    if odd.empty:
        return []
    units = ", ".join(sorted({unit for unit in odd["guessed_unit"] if unit != "none"}))
    guess = f" They are probably in {units} instead of ns." if units else ""
    messages = text.pluralize(odd["messages"].sum(), "messages")
    senders = text.pluralize(odd["sender_id"].nunique(dropna=False), "senders")
    return [f"The timestamps of {messages} of {senders} are implausible; no latency counts them.{guess}"]


def _describe_span(source: TableWindow) -> str:
    """The time span of the messages in the tables, for a user who requested another one."""
    window = source.window
    if window.since is None and window.until is None:
        return ""
    at_any_time = TableWindow(source.snapshot, replace(window, since=None, until=None))
    times = " UNION ALL ".join(f"SELECT first_seen FROM {name}" for name in ("delivery_status", "delivered_messages"))  # noqa: S608
    held = _take_row(at_any_time.query(f"SELECT min(first_seen) AS first, max(first_seen) AS last FROM ({times})"))  # noqa: S608
    if held["first"] is None:
        return ""
    return f" Those in the tables are from {text.time(held['first'])} to {text.time(held['last'])} (UTC)."


def rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The first :data:`MOST_ROWS` rows in JSON types: times in ISO 8601 UTC, unknown values as null."""
    head = frame.head(MOST_ROWS).to_dict("records")
    return [{str(name): _to_plain(value) for name, value in row.items()} for row in head]


def _take_row(frame: pd.DataFrame) -> dict[str, Any]:
    return rows(frame)[0]


def _to_plain(value: Any) -> Any:
    if value is None or value is pd.NaT or value is pd.NA:
        return None
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).isoformat().replace("+00:00", "Z")
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
