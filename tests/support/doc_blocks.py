"""The fenced blocks of README and docs/, each with what says how it is tested.

A comment on the line above a block, which no reader sees, is its marker:

* ``<!-- run -->``: tests/docs/test_doc_blocks.py runs it, on the sample tables and in an empty directory;
* ``<!-- test: path/to/test.py::name -->`` (or the module alone): that test runs it; code it takes from the page itself;
* ``<!-- example: reason -->``: it is for another system, or needs what no test has; the reason says which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COMMAND_LANGUAGES = {"sh", "bash", "console", "shell", "python"}
"""What needs a marker. SQL stands on docs/questions.md only, and every text there is run."""
_BLOCK = re.compile(
    r"(?:^[ ]*<!-- (?P<marker>run|test|example)(?:: (?P<about>[^\n]*?))? -->\n+)?"
    r"^(?P<indent>[ ]*)```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)```",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block: ``page`` is its path in the repository, ``line`` that of the fence."""

    page: str
    line: int
    language: str
    text: str
    marker: str | None
    about: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    def commands(self) -> list[str]:
        """The command lines of a shell block, prompts, comments and continuations taken away."""
        text = re.sub(r"\\\n\s*", " ", self.text)
        lines = [line.strip() for line in text.splitlines()]
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in (re.sub(r"\s+#\s.*$", "", line) for line in lines) if line and line[0] != "#"]


def pages() -> list[Path]:
    """README, CONTRIBUTING and every page under docs/."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks() -> Iterator[Block]:
    """Every fenced block of every page."""
    for page in pages():
        yield from blocks_of(page)


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of one page, in order."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in _BLOCK.finditer(text):
        fence = match.start("indent")
        blocks.append(
            Block(
                page.relative_to(ROOT).as_posix(),
                text.count("\n", 0, fence) + 1,
                match["language"],
                match["text"],
                match["marker"],
                match["about"] or "",
            )
        )
    return blocks
