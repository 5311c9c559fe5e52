"""Kept cases pass again; every target finds nothing in a short search; and a search does find a planted fault."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import strategies as st

from tests.fuzz.cases_format import Step, Target, kept, load
from tests.fuzz.search import search
from tests.fuzz.targets import TARGETS, run

EXAMPLES = 20
"""Few: `make fuzz`, which CI runs as well, tries thousands."""


@pytest.mark.parametrize(("name", "path"), list(kept()), ids=lambda value: getattr(value, "stem", ""))
def test_what_failed_once_passes(name: str, path: Path) -> None:
    run(TARGETS[name], load(path))


@pytest.mark.parametrize("name", list(TARGETS))
def test_a_short_search_finds_nothing(name: str, tmp_path: Path) -> None:
    assert search(TARGETS[name], 1, EXAMPLES, tmp_path) is None


def test_a_planted_fault_is_found_shrunk_and_kept(tmp_path: Path) -> None:
    def fails(steps: list[Step]) -> None:
        assert not any(len(step.data) > 2 for step in steps)

    steps = st.lists(st.builds(Step, st.just("any"), st.integers(0, 9), st.binary(max_size=9)), max_size=5)
    path = search(Target("planted", steps, fails), 1, 200, tmp_path)
    assert path is not None
    assert load(path) == [Step("any", 0, b"\0\0\0")]
