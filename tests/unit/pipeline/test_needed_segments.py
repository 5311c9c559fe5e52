"""How many segments a message needs, as far as the evidence tells."""

from __future__ import annotations

import pytest

from reliable_channel.pipeline.verdict.judge import count_needed_segments


@pytest.mark.parametrize(
    ("source", "needed", "data_count", "received", "expected"),
    [
        pytest.param("delivered", 3, None, 3, 3, id="delivered"),
        pytest.param("incomplete", 3, None, 2, 3, id="a set that expired with data segments"),
        pytest.param("incomplete", None, None, 1, 2, id="a set that expired with parity alone: more than came"),
        pytest.param("waiting", None, 4, 1, 4, id="segments that wait"),
        pytest.param("waiting", None, None, 1, 1, id="a bare message"),
        pytest.param("named", None, None, 0, 1, id="only named"),
        pytest.param("recorded", None, None, 0, 2, id="only its sender reports its two segments"),
        pytest.param("recorded", None, 4, 1, 4, id="its sender reports it, and a segment that shows k came"),
    ],
)
def test_needed_is_k_or_more_than_came(
    source: str, needed: int | None, data_count: int | None, received: int, expected: int
) -> None:
    row = {"source": source, "needed": needed, "data_count": data_count, "received": received, "ids": ["a", "b"]}
    assert count_needed_segments(row) == expected
