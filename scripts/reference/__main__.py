"""Write every generated page of docs/."""

from __future__ import annotations

from pathlib import Path

from scripts.reference import PAGES

ROOT = Path(__file__).parents[2]

for path, text in PAGES.items():
    (ROOT / path).write_text(text(), encoding="utf-8")
    print(f"{path} written")
