"""docs/dashboard.md tells the truth: its configuration, its numbers, its pages."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from reliable_channel.analysis.dashboard import render
from reliable_channel.analysis.dashboard.figures import MOST_ROWS
from reliable_channel.analysis.report.acks_matrix import MOST_NAMES
from reliable_channel.analysis.report.dimensions import MOST_BINS
from reliable_channel.analysis.report.snapshot import MEMORY_LIMIT, PATIENCE_S
from reliable_channel.config import load
from reliable_channel.config.fixed import FIXED

TEXT = next((Path(__file__).parents[3] / "docs").rglob("dashboard.md")).read_text(encoding="utf-8")


def test_the_configuration_is_valid_and_says_the_defaults() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)
    given = yaml.safe_load(block)
    assert load("local", **given) == load("local")
    settable = {key for key in type(load("local").dashboard).model_fields if f"dashboard.{key}" not in FIXED}
    assert set(given["dashboard"]) | {"token"} == settable
    assert f"http://127.0.0.1:{load('local').dashboard.port}/" in TEXT


def test_every_page_of_the_navigation_is_described() -> None:
    described = re.findall(r"^\| ([^|]+?) \|", TEXT.split("| page |")[1], re.MULTILINE)
    assert {name for _, name in render.PAGES} <= set(described)


def test_the_bounds_are_those_of_the_code() -> None:
    assert f"at most {MOST_BINS} bins and {MOST_ROWS} rows" in TEXT
    assert f"the matrix {MOST_NAMES} senders" in TEXT
    assert f"{PATIENCE_S:.0f} seconds and {MEMORY_LIMIT.replace('GB', ' GB')}" in TEXT
