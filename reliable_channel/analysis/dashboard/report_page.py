"""Renders the report as one HTML file with embedded pictures, no network access, no scripts, fit for print.

Jinja escapes every string; charts are pictures (``<img>``), in which no script runs; and a content security policy in
the page allows only its own style sheet and those pictures.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from typing import Any

from altair.utils.schemapi import debug_mode
from markupsafe import Markup

from reliable_channel.analysis import text
from reliable_channel.analysis.dashboard.render import templates
from reliable_channel.analysis.report import capacity, delivery, depth, drawing, layout, loss, quarantine
from reliable_channel.analysis.report.charts import capacity as capacity_charts
from reliable_channel.analysis.report.charts import delivery as delivery_charts
from reliable_channel.analysis.report.charts import look
from reliable_channel.analysis.report.charts import loss as loss_charts
from reliable_channel.analysis.report.dark import with_dark_scheme
from reliable_channel.analysis.report.source import TableWindow
from reliable_channel.analysis.report.thresholds import Check

MOST_ROWS = 50
DEEPEST = 20_000
"""The number of newest segment rows that are walked through for the causal depth."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart, its alternative text, and its place in the page."""

    chapter: str
    alternative: str
    uri: str


def pictures(source: TableWindow) -> Iterator[tuple[str, str, look.Chart]]:
    """(chapter, alternative text, chart), in the order of the page."""
    yield "Delivery", "Messages by channel and outcome", delivery_charts.outcomes(delivery.by_channel(source))
    yield "Delivery", "Messages delivered over time", delivery_charts.rate(delivery.rate(source))
    how = "From the sender's timestamp to the delivery here, by channel."
    curve = delivery_charts.curve(delivery.latency_curve(source), "How long messages took", how)
    yield "Delivery", "Distribution of latency by channel", curve
    by_size = delivery.latency(source, "size")
    yield (
        "Delivery",
        "Latency by size",
        delivery_charts.quantiles(by_size, "Latency by size of the payload", "messages"),
    )
    by_sender = delivery.latency(source, "sender_id")
    yield "Delivery", "Latency by sender", delivery_charts.quantiles(by_sender, "Latency by sender", "messages")
    depths = depth.depth_over_time(depth.causal_depth(source, DEEPEST))
    yield "Delivery", "Causal depth over time", delivery_charts.depth(depths)
    how = "From the first sight of the message to the first evidence, by its kind."
    evidence = delivery.acknowledgement_curve(source)
    evidence["name"] = evidence["name"].str.replace("_", " ")
    acks = delivery_charts.curve(evidence, "How long acknowledgements took", how)
    yield "Delivery", "Distribution of acknowledgement latency", acks
    yield "Loss", "Messages that were not delivered, by cause", loss_charts.causes(loss.causes(source))
    yield (
        "Loss",
        "Messages that were not delivered, over time",
        loss_charts.losses_over_time(loss.losses_over_time(source)),
    )
    yield "Loss", "Runs of lost messages by length", loss_charts.bursts(loss.bursts(source))
    yield "Loss", "Share of segments lost by index", loss_charts.by_segment_index(loss.by_segment_index(source))
    yield "Loss", "What parity saved", loss_charts.parity(loss.parity(source))
    yield "Loss", "Answers of store nodes", loss_charts.stores(loss.stores(source))
    yield "Loss", "Requests by attempt", loss_charts.refetch(loss.refetch(source))
    yield "Loss", "Quarantined records by reason", loss_charts.quarantine(quarantine.reasons(source))
    yield "Capacity", "Rows per second over time", capacity_charts.throughput(capacity.throughput(source))
    yield "Capacity", "Lag over time", capacity_charts.lag(capacity.lag(source))
    yield "Capacity", "Size of the state over time", capacity_charts.state(capacity.state(source))
    yield "Capacity", "Busy time per record and per message", capacity_charts.cost(capacity.cost(source))


def render(source: TableWindow, report: dict[str, Any], checks: list[Check]) -> str:
    """The page."""
    with debug_mode(False):  # Altair checks every part of a chart when it is made: tests have done that
        drawn = [
            Picture(chapter, words, data_uri(drawing.svg(chart.to_dict(validate=False))))
            for chapter, words, chart in pictures(source)
        ]
    page: str = (
        templates()
        .get_template("report.html")
        .render(
            data_dir=source.snapshot.data_dir,
            report=report,
            when=layout.window(report),
            headline=layout.headline(report),
            checks=[(layout.check(check), check.crossed) for check in checks],
            chapters=list(dict.fromkeys(picture.chapter for picture in drawn)),
            pictures=drawn,
            sections=layout.SECTIONS,
            most=MOST_ROWS,
            time=text.time,
            **own_style(),
        )
    )
    return page


def own_style() -> dict[str, Any]:
    """The style sheet, for a page alone in a file."""
    style = (resources.files("reliable_channel.analysis.dashboard") / "static" / "style.css").read_text("utf-8")
    return {
        "style": Markup("<style>{}</style>").format(Markup(style)),  # noqa: S704 - a file of ours
        "style_hash": base64.b64encode(hashlib.sha256(style.encode()).digest()).decode("ascii"),
    }


def data_uri(svg: str) -> str:
    """The ``src`` of an ``<img>``: the content of a picture cannot act on the page around it."""
    return "data:image/svg+xml;base64," + base64.b64encode(with_dark_scheme(svg).encode()).decode("ascii")
