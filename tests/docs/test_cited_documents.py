"""Every document that code and tests cite is in the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CITED = re.compile(r"(?<![\w/*}])((?:\.\./|[\w-]+/)*[\w-]+\.md)\b(?![\w(])")
MADE = {"build", "run", ".venv", "node_modules", "__pycache__"}


def test_every_markdown_document_that_code_cites_exists() -> None:
    names = {page.name for page in (ROOT / "docs").rglob("*.md")} | {page.name for page in ROOT.glob("*.md")}
    folders = ("reliable_channel", "jobs", "bench", "scripts", "tests", "conf")
    missing = [
        f"{file.relative_to(ROOT)} cites {name}"
        for folder in folders
        for kind in ("*.py", "*.proto", "*.yml", "*.yaml", "*.json")
        for file in (ROOT / folder).rglob(kind)
        if not MADE & set(file.relative_to(ROOT).parts)
        for name in CITED.findall(file.read_text(encoding="utf-8"))
        if not (any((ROOT / place / name).is_file() for place in (".", "docs", "docs/reference")) or name in names)
    ]
    assert missing == []
