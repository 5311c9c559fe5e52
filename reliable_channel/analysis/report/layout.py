"""Defines the tables of the report, their order, and the format of their cells, for terminal and page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
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


def _name(key: str, heading: str) -> ReportColumn:
    return ReportColumn(key, heading, text.name, right=False)


def _sentence(value: Any) -> str:
    return text.name(value, 200)


def _words(key: str, heading: str) -> ReportColumn:
    return ReportColumn(key, heading, text.words, right=False)


def _counts(*names: str) -> Iterator[ReportColumn]:
    """Columns of numbers, headed as they are called."""
    return (ReportColumn(name, name, text.count) for name in names)


_QUANTILES = tuple(
    ReportColumn(f"{k}_ms", h, text.duration) for k, h in (("p50", "half"), ("p90", "90 %"), ("p99", "99 %"))
)

SECTIONS: tuple[ReportSection, ...] = (
    ReportSection(
        "channels",
        "Channels",
        (
            _name("channel_id", "channel"),
            *_counts("messages", "delivered", "late", "repaired", "missing", "unknown"),
            ReportColumn("loss", "loss", text.percent),
            ReportColumn("payload_bytes", "payload", text.size),
            ReportColumn("last_seen", "last seen (UTC)", text.time),
        ),
        "No channel is known in this window.",
    ),
    ReportSection(
        "causes",
        "Why messages were not delivered",
        (_words("verdict", "verdict"), _words("cause", "cause"), *_counts("messages")),
        "No verdict names a loss.",
    ),
    ReportSection(
        "missing",
        "Missing messages, the newest first",
        (
            ReportColumn("first_seen", "first trace (UTC)", text.time, right=False),
            _name("channel_id", "channel"),
            _name("sender_id", "sender"),
            ReportColumn("message_key", "message", text.short, right=False),
            _words("cause", "cause"),
            ReportColumn("detail", "evidence", _sentence, right=False, wide=True),
            ReportColumn("acknowledged_by", "who has it", text.name, right=False, wide=True),
        ),
        "No message has the verdict missing.",
    ),
    ReportSection(
        "latency_by_channel",
        "How long messages took, from their sender's timestamp to their delivery in causal order",
        (_name("name", "channel"), *_counts("messages"), *_QUANTILES),
        "No delivered message has a plausible timestamp.",
    ),
    ReportSection(
        "odd_timestamps",
        "Implausible timestamps",
        (
            _name("channel_id", "channel"),
            _name("sender_id", "sender"),
            _words("guessed_unit", "guessed unit"),
            *_counts("messages"),
            ReportColumn("least", "least, as sent", text.count),
            ReportColumn("most", "greatest, as sent", text.count),
        ),
        "The timestamps of all senders are plausible.",
    ),
    ReportSection(
        "acknowledgements_by_channel",
        "How long acknowledgements took, from the first sight of the message",
        (_name("name", "channel"), *_counts("acknowledgements"), *_QUANTILES),
        "Nothing was acknowledged.",
    ),
    ReportSection(
        "parity",
        "What parity saved, and what was one short",
        (
            ReportColumn("parity_count", "parity segments", text.count),
            _words("outcome", "outcome"),
            *_counts("messages"),
        ),
        "No message of several segments is complete or given up.",
    ),
    ReportSection(
        "stores",
        "What store nodes answered",
        (
            _name("node", "node"),
            _words("purpose", "purpose"),
            *_counts("asked", "present", "absent", "error"),
        ),
        "No store node was asked.",
    ),
    ReportSection(
        "refetch",
        "Asking for what is missing",
        (*_counts("attempt", "requests", "answered", "found", "failed"),),
        "Nothing was asked for by its hash.",
    ),
    ReportSection(
        "quarantine",
        "What was quarantined",
        (
            _words("stage", "stage"),
            _words("reason", "reason"),
            _words("disposition", "disposition"),
            *_counts("records"),
            ReportColumn("newest", "newest (UTC)", text.time),
        ),
        "No record was quarantined.",
    ),
    ReportSection(
        "source_gaps",
        "What was never seen",
        (
            _name("name", "gap"),
            ReportColumn("cause", "cause", text.words, right=False, wide=True),
            _words("status", "status"),
            ReportColumn("from_time", "from (UTC)", text.time),
            ReportColumn("to_time", "to (UTC)", text.time),
            ReportColumn("sent", "sent meanwhile", text.count, wide=True),
            ReportColumn("unseen", "of these never seen", text.count, wide=True),
            ReportColumn("unbroken", "senders it hides nothing of", text.count),
            ReportColumn("broken", "whose chain breaks", text.count),
            ReportColumn("silent", "not heard since", text.count),
            ReportColumn("named", "missing, named by others", text.count),
            ReportColumn("elsewhere", "seen elsewhere", text.count, wide=True),
            ReportColumn("lacking", "of these not in the store", text.count, wide=True),
        ),
        "There are no gaps.",
    ),
    ReportSection(
        "vantages",
        "Where envelopes were seen",
        (
            _name("vantage", "vantage point"),
            _name("nodes", "its node"),
            *_counts("seen"),
            ReportColumn("not_seen", "not seen", text.count),
            ReportColumn("from_a_store", "of these a store had", text.count),
            ReportColumn("newest", "newest (UTC)", text.time),
        ),
        "No bridge said what it saw.",
    ),
    ReportSection(
        "pipeline",
        "The pipeline",
        (
            _words("query", "query"),
            ReportColumn("micro_batches", "micro-batches", text.count),
            *_counts("rows"),
            ReportColumn("rows_per_s", "rows/s", text.number),
            ReportColumn("p95_ms", "95 % took", text.duration),
            *_counts("lag"),
            ReportColumn("state_bytes", "state", text.size),
        ),
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
        ("half arrived within", text.duration(latency["p50"])),
        ("99 % within", text.duration(latency["p99"])),
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
