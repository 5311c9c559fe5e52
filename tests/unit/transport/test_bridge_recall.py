"""What a bridge without state takes from records of the evidence topic, whoever wrote them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reliable_channel.transport.bridge_state import LastSighting, parse_sighting

NODE = "http://127.0.0.1:8645"


def test_a_sighting_at_this_node_is_taken() -> None:
    value = json.dumps({"node": NODE, "at_ms": 5, "hashes": ["0a" * 32]}).encode()
    assert parse_sighting(value, NODE) == LastSighting(5, (b"\x0a" * 32,))
    assert parse_sighting(value, "http://127.0.0.1:1") is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\xff",
        b"[]",
        b"7",
        b"[" * 100_000,
        *(
            json.dumps({"node": NODE, "at_ms": 5, "hashes": []} | other).encode()
            for other in (
                {"at_ms": None},
                {"at_ms": 1e999},
                {"at_ms": "x"},
                {"hashes": None},
                {"hashes": ["0"]},
                {"hashes": [3]},
            )
        ),
        json.dumps({"node": NODE}).encode(),
    ],
)
def test_a_record_that_is_no_sighting_is_passed_over(value: bytes) -> None:
    found: Any = parse_sighting(value, NODE)
    assert found is None
