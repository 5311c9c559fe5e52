"""Which tables a report shows, in which order, and how their cells are written: shared by terminal and page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reliable_channel.report import text
from reliable_channel.report.thresholds import Check

Write = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its key in the section's rows, its heading, how a cell is written, and whether it is a number."""

    key: str
    heading: str
    write: Write
    right: bool = True


@dataclass(frozen=True, slots=True)
class Section:
    """A table of the report. ``empty`` is said in its place when there is no row."""

    key: str
    title: str
    columns: tuple[Column, ...]
    empty: str


def _name(key: str, heading: str) -> Column:
    return Column(key, heading, text.name, right=False)


def _words(key: str, heading: str) -> Column:
    return Column(key, heading, text.words, right=False)


_QUANTILES = tuple(Column(f"{k}_ms", h, text.duration) for k, h in (("p50", "half"), ("p90", "90 %"), ("p99", "99 %")))

SECTIONS: tuple[Section, ...] = (
    Section(
        "channels",
        "Channels",
        (
            _name("channel_id", "channel"),
            Column("messages", "messages", text.count),
            Column("delivered", "delivered", text.count),
            Column("late", "late", text.count),
            Column("repaired", "repaired", text.count),
            Column("missing", "missing", text.count),
            Column("unknown", "unknown", text.count),
            Column("loss", "loss", text.percent),
            Column("payload_bytes", "payload", text.size),
            Column("last_seen", "last seen (UTC)", text.time),
        ),
        "No channel is known in this window.",
    ),
    Section(
        "causes",
        "Why messages were not delivered",
        (_words("verdict", "verdict"), _words("cause", "cause"), Column("messages", "messages", text.count)),
        "No verdict names a loss.",
    ),
    Section(
        "latency_by_channel",
        "How long messages took, from their sender's timestamp to their delivery in causal order",
        (_name("name", "channel"), Column("messages", "messages", text.count), *_QUANTILES),
        "Nothing was delivered.",
    ),
    Section(
        "acknowledgements_by_channel",
        "How long acknowledgements took, from the first sight of the message",
        (_name("name", "channel"), Column("acknowledgements", "acknowledgements", text.count), *_QUANTILES),
        "Nothing was acknowledged.",
    ),
    Section(
        "parity",
        "What parity saved, and what was one short",
        (
            Column("parity_count", "parity segments", text.count),
            _words("outcome", "outcome"),
            Column("messages", "messages", text.count),
        ),
        "No message of several segments came to an end.",
    ),
    Section(
        "stores",
        "What store nodes answered",
        (
            _name("node", "node"),
            _words("purpose", "purpose"),
            Column("asked", "asked", text.count),
            Column("present", "present", text.count),
            Column("absent", "absent", text.count),
            Column("error", "error", text.count),
        ),
        "No store node was asked.",
    ),
    Section(
        "refetch",
        "Asking for what is missing",
        (
            Column("attempt", "attempt", text.count),
            Column("requests", "requests", text.count),
            Column("answered", "answered", text.count),
            Column("found", "found", text.count),
            Column("failed", "failed", text.count),
        ),
        "Nothing was asked for.",
    ),
    Section(
        "quarantine",
        "What was refused",
        (
            _words("stage", "stage"),
            _words("reason", "reason"),
            _words("disposition", "disposition"),
            Column("records", "records", text.count),
            Column("newest", "newest (UTC)", text.time),
        ),
        "No record was refused.",
    ),
    Section(
        "source_gaps",
        "What was never seen",
        (
            _name("name", "gap"),
            _words("cause", "cause"),
            _words("status", "status"),
            Column("from_time", "from (UTC)", text.time),
            Column("to_time", "to (UTC)", text.time),
        ),
        "There is no gap in what was read.",
    ),
    Section(
        "pipeline",
        "The pipeline",
        (
            _words("query", "query"),
            Column("micro_batches", "micro-batches", text.count),
            Column("rows", "rows", text.count),
            Column("rows_per_s", "rows/s", text.number),
            Column("p95_ms", "95 % took", text.duration),
            Column("lag", "lag", text.count),
            Column("state_bytes", "state", text.size),
            Column("dropped_rows", "dropped", text.count),
        ),
        "There are no metrics in this window; they go by the wall clock.",
    ),
)


def headline(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The few numbers to see first: (what, value)."""
    totals, latency = report["totals"], report["latency_ms"]
    return [
        ("messages", text.count(totals["messages"])),
        ("delivered", text.count(totals["delivered"])),
        ("missing", text.count(totals["missing"])),
        ("loss", text.percent(totals["loss"]) if totals["messages"] else text.DASH),
        ("half arrived within", text.duration(latency["p50"])),
        ("99 % within", text.duration(latency["p99"])),
        ("saved by parity", text.count(totals["repaired"])),
        ("records refused", text.percent(report["records"]["refused_share"])),
    ]


def window(report: dict[str, Any]) -> str:
    """The window in words."""
    asked = report["window"]
    since, until = asked["from"], asked["to"]
    if since is None and until is None:
        words = "everything in the tables"
    else:
        words = f"{text.time(since) if since else 'the beginning'} to {text.time(until) if until else 'the end'} (UTC)"
    if asked["channel"] is not None:
        words += f", channel {text.name(asked['channel'])}"
    if asked["content_topic"] is not None:
        words += f", content topic {text.name(asked['content_topic'])}"
    return words


def check(found: Check) -> str:
    """A threshold in one line."""
    write: Write = {"share": text.percent, "ms": text.duration}.get(found.unit, text.number)
    value = "nothing to measure" if found.value is None else write(found.value)
    verdict = "crossed" if found.crossed else "kept"
    return f"--{found.name.replace('_', '-')} {write(found.limit)}: {verdict} ({value})"
