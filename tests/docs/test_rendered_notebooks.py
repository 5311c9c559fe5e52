"""The notebooks with their results in docs/rendered are those of notebooks/, and load nothing."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def words(text: str) -> str:
    return re.sub(r"\s+", "", unescape(re.sub(r"<[^>]+>", "", text)))


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_the_rendered_copy_has_the_cells_of_the_notebook_with_results(file: Path) -> None:
    rendered = (ROOT / "docs" / "rendered" / f"{file.stem}.html").read_text(encoding="utf-8")
    shown = words(rendered)
    code = [cell for cell in nbformat.read(file, as_version=4).cells if cell.cell_type == "code"]
    for cell in code:
        assert words(cell.source.replace("<", "&lt;")) in shown, "run: make notebooks"
    assert rendered.count('class="output_area"') >= len(code) - 1, "only the parameters show nothing"
    assert not re.search(r"<script|<link|<iframe|src=.(?!data:)|url\(|@import", rendered)
    assert f"rendered/{file.stem}.html" in (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
