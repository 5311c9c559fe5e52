"""docs/errors.md as expectations: the message under a heading, as a pattern that what is printed must match."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def messages() -> dict[str, str]:
    """Heading → the message that stands under it."""
    pairs = re.findall(r"^### (.+?)\n\n```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return dict(pairs)


def pattern_of(heading: str) -> re.Pattern[str]:
    """The message of one heading; ``…`` in it is anything, within a line."""
    return re.compile(r"[^\n]+?".join(re.escape(part) for part in messages()[heading].strip().split("…")))


def exit_code(heading: str) -> int:
    """The exit code that the page names under a heading."""
    text = PAGE.read_text(encoding="utf-8").split(f"### {heading}\n", 1)[1].split("\n#", 1)[0]
    return int(re.findall(r"Exit code (\d+)", text)[0])
