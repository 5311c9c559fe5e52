"""Every bench that starts processes (Spark, a broker, servers) runs; tests/unit/test_bench.py has the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import js_waku
from tests.support.benches import ALL, QUICK, check_small

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.parametrize("name", sorted(ALL - QUICK))
def test_a_bench_runs_at_a_small_scale(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # At this scale the cells differ in nothing but whether they have one channel or several.
    monkeypatch.setattr(js_waku, "CELLS", js_waku.CELLS[::4])
    check_small(name, tmp_path)
