"""Defines the processor that Spark calls for every bucket of channels, and the bucket's state in Spark's state store.

Imports only PySpark: at the first micro-batch of a query Spark starts a Python process that unpickles the processor,
only to ask which state variables it has. So the function that processes the rows stays pickled until there are rows;
otherwise that process would import the whole job, which takes most of a second.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql.streaming.stateful_processor import (
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)

if TYPE_CHECKING:
    import pandas as pd

Update = Callable[[tuple[Any, ...], Iterator["pd.DataFrame"], "StoredBucket"], Iterator["pd.DataFrame"]]
"""(key of a bucket, its rows, its stored state) → packed results."""


class Buckets(StatefulProcessor):
    """The processor that Spark calls for every bucket of channels: calls ``update`` with the bucket's stored state."""

    def __init__(self, update: Update) -> None:
        self._pickled: bytes = cloudpickle.dumps(update)  # type: ignore[no-untyped-call]

    @cached_property
    def _update(self) -> Update:
        update: Update = cloudpickle.loads(self._pickled)
        return update

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the state; called once in every task."""
        head = handle.getValueState("head", "value binary")
        name = "name binary, part bigint"
        journals = handle.getMapState("journals", name, "value binary")
        snapshots = handle.getMapState("snapshots", name, "value string")
        self._state = StoredBucket(head, journals, snapshots)

    def handleInputRows(  # noqa: N802 - Spark's name
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        """Process one bucket's rows of a micro-batch."""
        yield from self._update(key, rows, self._state)

    def close(self) -> None:
        """Do nothing: no resource is open."""


class StoredBucket:
    """The current bucket in Spark's state store: its head, and a map with keys (digest, number).

    Journals (part 0 and up) have a separate map. RocksDB sorts by map first; in one map the small entries of every
    micro-batch would lie among the large ones, and RocksDB would rewrite all snapshots to merge these in.

    Snapshots are base64, because Spark pickles bytes for Python as text, one by one: reading 84 KB takes 0.8 ms of CPU
    in the JVM and here, as base64 0.2 (docs/decisions.md, *The shape*)."""

    def __init__(self, head: ValueState, journals: MapState, snapshots: MapState) -> None:
        self._head, self._journals, self._snapshots = head, journals, snapshots

    def head(self) -> bytes | None:
        value = self._head.get()
        return None if value is None else bytes(value[0])

    def set_head(self, value: bytes) -> None:
        self._head.update((value,))

    def get(self, name: bytes, part: int) -> bytes | None:
        if part < 0:
            value = self._snapshots.getValue((name, part))
            return None if value is None else a2b_base64(value[0])
        value = self._journals.getValue((name, part))
        return None if value is None else bytes(value[0])

    def put(self, name: bytes, part: int, value: bytes) -> None:
        if part < 0:
            self._snapshots.updateValue((name, part), (b2a_base64(value, newline=False).decode(),))
        else:
            self._journals.updateValue((name, part), (value,))

    def remove(self, name: bytes, part: int) -> None:
        (self._snapshots if part < 0 else self._journals).removeKey((name, part))
