"""Runs of ``reliable-channel report`` over the sample tables."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from reliable_channel.cli.app import build
from tests.support.sample_rows import Story
from tests.support.sample_tables import story

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""What would control a terminal."""


def report(place: Path, *options: str) -> Result:
    return CliRunner().invoke(build("report"), ["report", "--tables", str(place), *options])


@pytest.fixture(scope="module")
def the_story() -> Story:
    return story()


@pytest.fixture(scope="module")
def everything(sample_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Path]:
    """One run with all forms: what ``--json`` printed, the page, and the directory of the CSV files."""
    place = tmp_path_factory.mktemp("report") / "deeper"
    options = ["--json", "--html", str(place / "report.html"), "--csv", str(place / "csv"), "--max-loss", "0.1%"]
    answer = report(sample_tables, *options)
    assert answer.exit_code == 3, answer.output
    assert {path.name for path in place.iterdir()} == {"report.html", "csv"}
    return answer.stdout, (place / "report.html").read_text(encoding="utf-8"), place / "csv"


@pytest.fixture(scope="module")
def as_json(everything: tuple[str, str, Path]) -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(everything[0])
    return answers
