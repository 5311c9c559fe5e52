"""What is kept of the notebooks: their sources alone, in cells that fit on a screen."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import nbformat
import pytest

from reliable_channel.analysis.report.notebook import open_tables, tables
from reliable_channel.core.errors import EnvironmentFault

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


def test_the_tables_of_a_notebook_are_those_of_the_variable_in_a_window(
    sample_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL_TABLES", str(sample_tables))
    source = open_tables("2026-11-01T12:00", "2026-11-01T12:10", channel="talk")
    assert source.rows("delivered_messages", ["channel_id"]).num_rows == 10
    assert alt.renderers.active == "svg"


def test_without_the_variable_they_are_those_of_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELIABLE_CHANNEL_TABLES", raising=False)
    (tmp_path / "build/demo/tables").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    for place in (tmp_path, tmp_path / "notebooks"):
        monkeypatch.chdir(place)
        assert tables().resolve() == tmp_path / "build/demo/tables"
    with pytest.raises(EnvironmentFault, match="no Delta tables"):
        open_tables()
