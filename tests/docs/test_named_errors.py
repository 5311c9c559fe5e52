"""Errors that the pages name can be caught: they are where the pages' other names are imported from."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from reliable_channel import channel, messaging
from reliable_channel.core import errors
from reliable_channel.core.errors import ReliableChannelError
from reliable_channel.messaging import MessagingClient, MessagingNode

DOCS = Path(__file__).parents[2] / "docs"
LOADED = (MessagingClient, MessagingNode)
"""With them their errors are."""


def names_of(kind: type[ReliableChannelError]) -> Iterator[str]:
    for one in kind.__subclasses__():
        yield one.__name__
        yield from names_of(one)


@pytest.mark.parametrize(("page", "module"), [("channel", channel), ("messaging", messaging)])
def test_errors_that_a_page_names_are_exported(page: str, module: ModuleType) -> None:
    words = re.findall(r"`(\w+)`", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    named = set(words) & set(names_of(ReliableChannelError))
    assert named
    assert [name for name in sorted(named) if not hasattr(module, name) and not hasattr(errors, name)] == []
