"""What code, tests and pages cite is in the repository."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CITED = re.compile(r"(?<![\w/*}])((?:\.\./|[\w-]+/)*[\w-]+\.md)\b(?![\w(])")
MADE = {"build", "run", ".venv", "node_modules", "__pycache__"}
FOLDERS = ("reliable_channel", "jobs", "bench", "scripts", "tests", "conf")
FOREIGN = ("src/analysis/",)
"""How the paths of other repositories begin."""
PAST = {"measurements-history.md", "CHANGELOG.md"}
"""Pages that name what was there once."""


def test_every_markdown_document_that_code_cites_exists() -> None:
    names = {page.name for page in (ROOT / "docs").rglob("*.md")} | {page.name for page in ROOT.glob("*.md")}
    missing = [
        f"{file.relative_to(ROOT)} cites {name}"
        for folder in FOLDERS
        for kind in ("*.py", "*.proto", "*.yml", "*.yaml", "*.json")
        for file in (ROOT / folder).rglob(kind)
        if not MADE & set(file.relative_to(ROOT).parts)
        for name in CITED.findall(file.read_text(encoding="utf-8"))
        if not (any((ROOT / place / name).is_file() for place in (".", "docs", "docs/reference")) or name in names)
    ]
    assert missing == []


def test_every_python_file_that_a_page_cites_exists() -> None:
    files = {f"/{file.relative_to(ROOT).as_posix()}" for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")}
    missing = [
        f"{page.relative_to(ROOT)} cites {name}"
        for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
        if page.name not in PAST
        for name in re.findall(r"`([\w-]+/[\w/-]+\.py)`", page.read_text(encoding="utf-8"))
        if not (name.startswith(FOREIGN) or any(file.endswith(f"/{name}") for file in files))
    ]
    assert missing == []
