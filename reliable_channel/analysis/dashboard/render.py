"""Renders the templates of all pages, the report's too, with escaping always on, and builds addresses in one place."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from reliable_channel import __version__
from reliable_channel.analysis import text
from reliable_channel.analysis.dashboard.windows import SPANS
from reliable_channel.analysis.figures import NO_CAUSE
from reliable_channel.analysis.report.channel_key import ChannelFilter

PAGES = (
    ("/", "Overview"),
    ("/channels", "Channels"),
    ("/messages", "Messages"),
    ("/quarantine", "Quarantine"),
    ("/alerts", "Alerts"),
)
_PARENTS = {"/channel": "/channels", "/message": "/messages"}


def address(path: str, **parameters: Any) -> str:
    """A local address; parameters that are ``None`` or empty are left out, everything else is quoted."""
    given = [(name, str(value)) for name, value in parameters.items() if value is not None and value != ""]
    return path + ("?" + urlencode(given, errors="replace") if given else "")


def dump(raw: bytes | None, most: int = 256) -> str:
    """A hex dump, 16 bytes a line: offset, hex, and the printable ASCII."""
    lines = []
    for start in range(0, min(len(raw or b""), most), 16):
        piece = (raw or b"")[start : start + 16]
        pairs = " ".join(f"{byte:02x}" for byte in piece)
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in piece)
        lines.append(f"{start:04x}  {pairs:<47}  {letters}")
    return "\n".join(lines)


def prose(sentence: str) -> Markup:
    """A sentence of this program (or one that quotes a fault), escaped, with text between backticks as code."""
    parts = [escape(text.name(part, 600)) for part in sentence.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))


@cache
def templates() -> Environment:
    """The templates, with what every page needs except ``data_dir``. Compiled once: that takes longer than a page."""
    made = Environment(
        loader=PackageLoader("reliable_channel.analysis.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    writers = (text.name, text.duration, text.count, text.number, text.pluralize, text.size)
    made.filters.update({write.__name__: write for write in writers})
    made.filters.update(
        dump=dump, prose=prose, quote=shlex.quote, hex=lambda raw: text.DASH if raw is None else raw.hex()
    )
    made.globals.update(
        address=address,
        share=text.share,
        moment=text.moment,
        channel_address=_channel_address,
        message_address=_message_address,
        channel_of=ChannelFilter.from_subject,
        no_cause=NO_CAUSE,
        spans=SPANS,
        pages=PAGES,
        version=__version__,
    )
    return made


class Renderer:
    """Renders the pages of the dashboard."""

    def __init__(self, data_dir: str, refresh_ms: int) -> None:
        self._same = {"data_dir": data_dir, "refresh_ms": refresh_ms}

    def page(self, template: str, path: str, known: Mapping[str, Any], values: Mapping[str, Any]) -> bytes:
        """One page. ``here(name=value)`` in it is its own address with some parameters changed."""

        def here(**changes: Any) -> str:
            return address(path, **{**known, **changes})

        fixed = {"here": here, "path": path, "section_path": _PARENTS.get(path, path), **self._same}
        shown = {"tag": "", "window": None, "stopped": [], "known": known, **values, **fixed}
        body = templates().get_template(template).render(**shown)
        return body.encode("utf-8", "replace")


def _channel_address(row: Any, **more: Any) -> str:
    """The page of the channel that a row (mapping or object) names."""
    return address("/channel", **_channel_of(row), **more)


def _message_address(row: Any, key: str | None = None) -> str:
    """The page of a message: of the row's ``message_key``, or of ``key`` in the row's channel."""
    return address("/message", key=_get(row, "message_key") if key is None else key, **_channel_of(row))


def _channel_of(row: Any) -> dict[str, Any]:
    return {name: _get(row, name) for name in ChannelFilter._fields}


def _get(row: Any, name: str) -> Any:
    return row[name] if isinstance(row, Mapping) else getattr(row, name)
