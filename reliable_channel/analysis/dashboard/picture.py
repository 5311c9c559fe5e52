"""Adds tooltips, and links to pages of the dashboard, to the marks of a drawn chart."""

from __future__ import annotations

import re
from typing import Any

from reliable_channel.analysis.dashboard.render import address

_HERE = "https://dashboard.invalid"
"""A placeholder, because Vega accepts only absolute addresses; it never leaves this module."""
_LINK = re.compile(f'<a xlink:href="{re.escape(_HERE)}(/[^"]*)">')
_MARK = re.compile(r'<(\w+) (aria-label="([^"]*)" role="graphics-symbol"[^>]*)/>')


def link(path: str, **parameters: Any) -> str:
    """The address of a page, as a chart's column ``link`` has it."""
    return _HERE + address(path, **parameters)


def add_tooltips(svg: str) -> str:
    """The SVG document with a ``<title>`` in every mark that has a description, and links relative to this server."""
    titled = _MARK.sub(r"<\1 \2><title>\3</title></\1>", svg)
    return _LINK.sub(r'<a href="\1">', titled)
