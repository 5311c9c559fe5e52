"""Every question of docs/questions.md has an answer in the sample tables, of the shape that the page promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from tests.support.questions import PAGE, Question, questions, with_sample_answers, write_polite


@pytest.fixture(scope="module")
def lake(sample_tables: Path) -> TableSnapshot:
    return TableSnapshot(PathSettings(data_dir=str(sample_tables)))


def test_there_are_at_least_twenty() -> None:
    assert len(questions()) >= 20
    assert [int(question.title.split(".")[0]) for question in questions()] == list(range(1, len(questions()) + 1))


@pytest.mark.parametrize("question", questions(), ids=str)
def test_duckdb_answers_in_the_shape_that_the_page_promises(question: Question, lake: TableSnapshot) -> None:
    answer = lake.arrow(question.duckdb)
    assert tuple(answer.column_names) == question.columns
    assert answer.num_rows > 0


def test_the_sample_answers_are_those_of_the_sample_tables(tmp_path: Path) -> None:
    """``python -m tests.support.questions`` writes them anew."""
    page = PAGE.read_text(encoding="utf-8")
    assert with_sample_answers(page, write_polite(tmp_path)) == page
