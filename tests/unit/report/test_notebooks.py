"""What is kept of the notebooks: their sources alone, in cells that fit on a screen."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[3] / "notebooks").glob("*.ipynb"))
SCREEN = 25
"""Lines."""


def test_they_are_all_there() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["capacity", "delivery", "investigate", "loss"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_it_is_kept_without_outputs_in_cells_that_fit_on_a_screen(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert len(cell.source.splitlines()) <= SCREEN
        assert not cell.get("outputs") and cell.get("execution_count") is None
        assert set(cell.metadata) == set()
