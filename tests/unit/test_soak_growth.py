"""What ``make soak`` calls growth, on samples that are made up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.soak import failed, growth, windows


def sampled(name: str, value: Callable[[int], float], samples: int = 100) -> list[dict[str, Any]]:
    return [{"s": float(n), "written": n, "read": n, "sizes": {name: value(n)}} for n in range(samples)]


def grown(name: str, value: Callable[[int], float], took_s: float = 3_600) -> bool:
    (found,) = growth(*windows(sampled(name, value)), took_s=took_s)
    return not found["kept"]


@pytest.mark.parametrize(
    ("name", "per_sample"),
    [
        ("MB of memory: JVM", 20),
        ("bytes of checkpoints", 1e6),
        ("files of checkpoints", 50),
        ("files: envelopes", 5),
        ("files of log: envelopes", 5),
        ("bytes of log: envelopes", 1e5),
    ],
)
def test_what_grows_with_every_sample_is_found_and_what_comes_and_goes_is_not(name: str, per_sample: float) -> None:
    assert grown(name, lambda n: per_sample * n)
    assert not grown(name, lambda n: per_sample * (n % 10))
    assert not grown(name, lambda n: per_sample * min(n, 10))


def test_the_first_tenth_does_not_count() -> None:
    early, _ = windows(sampled("files: envelopes", lambda n: n))
    assert [one["s"] for one in (early[0], early[-1])] == [10, 39]


def test_tables_may_grow_and_memory_checkpoints_and_logs_may_in_a_short_run() -> None:
    assert not grown("rows: envelopes", lambda n: 1e6 * n)
    assert not grown("bytes: envelopes", lambda n: 1e6 * n)
    assert not grown("MB of memory: JVM", lambda n: 100 * n, took_s=150)
    assert not grown("files of checkpoints", lambda n: 100 * n, took_s=150)
    assert not grown("files of log: envelopes", lambda n: 100 * n, took_s=1_000)
    assert grown("files: envelopes", lambda n: 100 * n, took_s=150)


def test_a_difference_from_the_truth_or_growth_fails() -> None:
    kept, grew = {"kept": True}, {"kept": False}
    assert not failed({"differences": [], "growth": [kept]})
    assert failed({"differences": ["one"], "growth": [kept]})
    assert failed({"differences": [], "growth": [kept, grew]})
