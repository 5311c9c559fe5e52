"""A bucket's head, journals and snapshots in Spark's state variables, without Spark."""

from __future__ import annotations

from typing import Any

from reliable_channel.pipeline.ack.buckets import Buckets


class FakeMap:
    """A ``MapState``; values come back as Spark gives them."""

    def __init__(self) -> None:
        self.entries: dict[tuple[bytes, int], bytes | str] = {}

    def getValue(self, key: tuple[bytes, int]) -> tuple[bytearray | str] | None:  # noqa: N802
        value = self.entries.get(key)
        return None if value is None else (bytearray(value) if isinstance(value, bytes) else value,)

    def updateValue(self, key: tuple[bytes, int], value: tuple[bytes | str]) -> None:  # noqa: N802
        self.entries[key] = value[0]

    def removeKey(self, key: tuple[bytes, int]) -> None:  # noqa: N802
        del self.entries[key]


class FakeHandle:
    """A ``StatefulProcessorHandle``."""

    def __init__(self) -> None:
        self.maps: dict[str, FakeMap] = {}

    def getValueState(self, name: str, schema: str) -> None:  # noqa: N802
        assert (name, schema) == ("head", "value binary")

    def getMapState(self, name: str, key: str, value: str) -> FakeMap:  # noqa: N802
        return self.maps.setdefault(name, FakeMap())


def test_journals_are_not_among_the_snapshots() -> None:
    handle: Any = FakeHandle()
    buckets = Buckets(lambda key, frames, state: iter(()))
    buckets.init(handle)
    state = buckets._state
    parts = (-2, -1, 0, 1, 7)
    for part in parts:
        state.put(b"name", part, b"\xff\x00 %d" % part)
    assert {name: [part for _, part in found.entries] for name, found in handle.maps.items()} == {
        "journals": [0, 1, 7],
        "snapshots": [-2, -1],
    }
    assert [state.get(b"name", part) for part in parts] == [b"\xff\x00 %d" % part for part in parts]
    state.remove(b"name", 1)
    assert state.get(b"name", 1) is None
