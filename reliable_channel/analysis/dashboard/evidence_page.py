"""Renders a bundle of evidence, and what was checked of it, as one HTML file: the page of its message, alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from reliable_channel.analysis.bundle.verify import EvidenceCheck
from reliable_channel.analysis.dashboard import message as message_page
from reliable_channel.analysis.dashboard.figures import svg
from reliable_channel.analysis.dashboard.render import templates
from reliable_channel.analysis.dashboard.report_page import data_uri, own_style
from reliable_channel.analysis.report.investigate import find_exact
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.core.errors import LocalError


def render(file_name: str, lake: TableSnapshot, checks: Sequence[EvidenceCheck]) -> str:
    """The page of the message in the tables of a bundle. Raises ``LocalError`` if they have none."""
    (status,) = lake.select("SELECT max(message_key) AS key FROM delivery_status")
    matches = find_exact(lake, status["key"] or "", limit=1)
    if not matches:
        raise LocalError("The bundle does not describe a message.", "Ask for the file again.")
    message, key = matches[0], status["key"]
    parts = message_page.page(lake, message)
    figures: dict[str, Any] = parts["figures"]
    for name, part in figures.items():
        if part.data is not None and part.data.rows:
            uri = data_uri(svg(part.data, dark=False).decode())
            figures[name] = replace(part, data=replace(part.data, uri=uri))
    values = {**parts, "message": message, "checks": checks, "key": message, "known": {"key": key}}
    shown = {**values, **own_style(), "data_dir": file_name, "tag": "", "stopped": []}
    page: str = templates().get_template("message.html").render(**shown)
    return page
