"""The generated pages of the documentation: ``python -m scripts.reference`` writes them, a test holds that they are
current."""

from __future__ import annotations

from collections.abc import Callable

from scripts.reference import command_line, configuration, rest, tables

PAGES: dict[str, Callable[[], str]] = {
    "docs/reference/configuration.md": configuration.markdown,
    "docs/reference/cli.md": command_line.markdown,
    "docs/reference/rest.md": rest.markdown,
    "docs/tables.md": tables.markdown,
}
"""Path in the repository → its text."""
