"""Defines the tables of the report, their order, and the format of their cells, for terminal and page."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from reliable_channel.analysis import text
from reliable_channel.analysis.report.thresholds import Check

Write = Callable[[Any], str]


@dataclass(frozen=True, slots=True)
class ReportColumn:
    """A column: its key in the section's rows, its heading, how a cell is written, and whether it is a number.
    ``wide``: left out of a terminal of less than 160 columns, where it would break its row into several lines."""

    key: str
    heading: str
    write: Write
    right: bool = True
    wide: bool = False


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A table of the report. ``empty`` is shown in its place when there is no row."""

    key: str
    title: str
    columns: tuple[ReportColumn, ...]
    empty: str


def _write_sentence(value: Any) -> str:
    return text.name(value, 200)


_WRITERS: dict[str, Write] = {
    key: write
    for write, keys in (
        (text.name, "channel_id sender_id name node nodes vantage acknowledged_by"),
        (text.words, "verdict cause guessed_unit outcome purpose stage reason disposition status query"),
        (text.time, "first_seen last_seen newest from_time to_time"),
        (text.duration, "p50_ms p90_ms p95_ms p99_ms"),
        (text.size, "payload_bytes state_bytes"),
        (text.percent, "loss"),
        (text.number, "rows_per_s"),
        (text.short, "message_key"),
        (_write_sentence, "detail"),
    )
    for key in keys.split()
}
"""How the cells of a column are written; those of others are whole numbers."""

_HEADINGS = {
    "channel_id": "channel",
    "sender_id": "sender",
    "message_key": "message",
    "detail": "evidence",
    "acknowledged_by": "who has it",
    "first_seen": "first trace (UTC)",
    "last_seen": "last seen (UTC)",
    "newest": "newest (UTC)",
    "from_time": "from (UTC)",
    "to_time": "to (UTC)",
    "payload_bytes": "payload",
    "state_bytes": "state",
    "rows_per_s": "rows/s",
    "p50_ms": "half",
    "p90_ms": "90 %",
    "p95_ms": "95 % took",
    "p99_ms": "99 %",
    "micro_batches": "micro-batches",
    "parity_count": "parity segments",
    "least": "least, as sent",
    "most": "greatest, as sent",
    "sent": "sent meanwhile",
    "unseen": "of these never seen",
    "unbroken": "senders it hides nothing of",
    "broken": "whose chain breaks",
    "silent": "not heard since",
    "named": "missing, named by others",
    "elsewhere": "seen elsewhere",
    "lacking": "of these not in the store",
    "vantage": "vantage point",
    "nodes": "its node",
    "from_a_store": "of these a store had",
}
"""The headings of columns that are not headed by their key."""

_LEFT = {text.name, text.words, text.short, _write_sentence}


def _make_section(key: str, title: str, columns: str, empty: str) -> ReportSection:
    """A section with ``columns``: their keys, each with ``=heading`` where it has another one here, and ``*`` where it
    is wide."""
    made = []
    for column in columns.split():
        name, _, heading = column.rstrip("*").partition("=")
        write = _WRITERS.get(name, text.count)
        right = write not in _LEFT and name != "first_seen"
        heading = heading or _HEADINGS.get(name, name.replace("_", " "))
        made.append(ReportColumn(name, heading, write, right, column.endswith("*")))
    return ReportSection(key, title, tuple(made), empty)


SECTIONS: tuple[ReportSection, ...] = (
    _make_section(
        "channels",
        "Channels",
        "channel_id messages delivered late repaired missing unknown loss payload_bytes last_seen",
        "No channel is known in this window.",
    ),
    _make_section("causes", "Why messages were not delivered", "verdict cause messages", "No verdict names a loss."),
    _make_section(
        "missing",
        "Missing messages, the newest first",
        "first_seen channel_id sender_id message_key cause detail* acknowledged_by*",
        "No message has the verdict missing.",
    ),
    _make_section(
        "latency_by_channel",
        "How long messages took, from their sender's timestamp to their delivery in causal order",
        "name=channel messages p50_ms p90_ms p99_ms",
        "No delivered message has a plausible timestamp.",
    ),
    _make_section(
        "odd_timestamps",
        "Implausible timestamps",
        "channel_id sender_id guessed_unit messages least most",
        "The timestamps of all senders are plausible.",
    ),
    _make_section(
        "acknowledgements_by_channel",
        "How long acknowledgements took, from the first sight of the message",
        "name=channel acknowledgements p50_ms p90_ms p99_ms",
        "Nothing was acknowledged.",
    ),
    _make_section(
        "parity",
        "What parity saved, and what was one short",
        "parity_count outcome messages",
        "No message of several segments is complete or given up.",
    ),
    _make_section(
        "stores",
        "What store nodes answered",
        "node purpose asked present absent error",
        "No store node was asked.",
    ),
    _make_section(
        "refetch",
        "Asking for what is missing",
        "attempt requests answered found failed",
        "Nothing was asked for by its hash.",
    ),
    _make_section(
        "quarantine",
        "What was quarantined",
        "stage reason disposition records newest",
        "No record was quarantined.",
    ),
    _make_section(
        "source_gaps",
        "What was never seen",
        "name=gap cause* status from_time to_time sent* unseen* unbroken broken silent named elsewhere* lacking*",
        "There are no gaps.",
    ),
    _make_section(
        "vantages",
        "Where envelopes were seen",
        "vantage nodes seen not_seen from_a_store newest",
        "No bridge said what it saw.",
    ),
    _make_section(
        "pipeline",
        "The pipeline",
        "query micro_batches rows rows_per_s p95_ms lag state_bytes",
        "There are no metrics in this window; they go by the wall clock.",
    ),
)


def headline(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The headline figures: (name, value)."""
    totals, latency = report["totals"], report["latency_ms"]
    judged = totals["messages"] or not totals["delivered_rows"]  # else nothing is known of what is missing
    return [
        ("messages", text.count(totals["messages"] if judged else totals["delivered_rows"])),
        ("delivered", text.count(totals["delivered"] if judged else totals["delivered_rows"])),
        ("missing", text.count(totals["missing"]) if judged else text.DASH),
        ("loss", text.percent(totals["loss"])),
        ("half of the delivered within", text.duration(latency["p50"])),
        ("99 % of the delivered within", text.duration(latency["p99"])),
        ("repaired", text.count(totals["repaired"])),
        ("records quarantined", text.percent(report["records"]["refused_share"])),
    ]


def window(report: dict[str, Any]) -> str:
    """The window in words."""
    requested = report["window"]
    since, until = requested["from"], requested["to"]
    if since is None and until is None:
        words = "everything in the tables"
    else:
        words = f"{text.time(since) if since else 'the beginning'} to {text.time(until) if until else 'the end'} (UTC)"
    if requested["channel"] is not None:
        words += f", channel {text.name(requested['channel'])}"
    if requested["content_topic"] is not None:
        words += f", content topic {text.name(requested['content_topic'])}"
    return words


def check(limit: Check) -> str:
    """A threshold in one line."""
    write: Write = {"share": text.percent, "ms": text.duration}.get(limit.unit, text.number)
    never = limit.value == math.inf
    value = "nothing to measure" if limit.value is None else "no message at all" if never else write(limit.value)
    verdict = "crossed" if limit.crossed else "kept"
    return f"--{limit.name.replace('_', '-')} {write(limit.limit)}: {verdict} ({value})"
