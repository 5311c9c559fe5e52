"""Keyed state in buckets: the processor that Spark calls for each bucket, and the bucket's state in Spark's store.

A key of Spark's state store that is touched costs milliseconds, an entry of its maps a tenth of one. So the keys are
buckets of channels (ack) or of payload hashes (reassembly), and a tick goes to each bucket (:mod:`.due_times`).

Imports only PySpark: at the first micro-batch of a query Spark starts a Python process that unpickles the processor,
only to ask which state variables it has. So the function that processes the rows stays pickled until there are rows;
otherwise that process would import the whole job, which takes most of a second.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from pyspark import cloudpickle
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.stateful_processor import (
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
    ValueState,
)

if TYPE_CHECKING:
    import pandas as pd

    from reliable_channel.config import Settings

BUCKETS_PER_PARTITION = 8
"""The number of keys of the state in each shuffle partition. A micro-batch touches all of them, because a tick goes to
each, and each costs 2 ms of CPU; the rows of one bucket are in memory together. Changing it requires new
checkpoints."""


class BucketState(Protocol):
    """The stored state of one bucket: its head, and a map with keys (digest, number)."""

    def head(self) -> bytes | None: ...
    def set_head(self, value: bytes) -> None: ...
    def get(self, name: bytes, part: int) -> bytes | None: ...
    def put(self, name: bytes, part: int, value: bytes) -> None: ...
    def remove(self, name: bytes, part: int) -> None: ...


Update = Callable[[tuple[Any, ...], Iterator["pd.DataFrame"], "BucketState"], Iterator["pd.DataFrame"]]
"""(key of a bucket, its rows, its stored state) → packed results."""


def with_bucket(rows: DataFrame, settings: Settings, is_tick: Column, *key: str) -> DataFrame:
    """``rows`` with a column ``bucket``, the key of the state; ticks once for every bucket."""
    every = F.sequence(F.lit(0), F.lit(_bucket_count(settings) - 1))
    of_row = F.when(is_tick, every).otherwise(F.array(bucket_of(settings, *key)))
    return rows.withColumn("bucket", F.explode(of_row))


def bucket_of(settings: Settings, *key: str | Column) -> Column:
    """The bucket that holds the state of this key."""
    return F.pmod(F.xxhash64(*key), F.lit(_bucket_count(settings))).cast("int")


def _bucket_count(settings: Settings) -> int:
    return settings.spark.shuffle_partitions * BUCKETS_PER_PARTITION


class Buckets(StatefulProcessor):
    """The processor that Spark calls for every bucket: calls ``update`` with the bucket's stored state."""

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
        self._state = _StoredBucket(head, journals, snapshots)

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


class _StoredBucket:
    """The current bucket in Spark's state store.

    Journals and due times (part 0 and up) have a separate map. RocksDB sorts by map first; in one map the small
    entries of every micro-batch would lie among the large ones (snapshots, sets of segments), and RocksDB would rewrite
    all of these to merge the small ones in.

    Snapshots are base64, because Spark pickles bytes for Python as text, one by one: reading 84 KB takes 0.8 ms of CPU
    in the JVM and here, as base64 0.2."""

    def __init__(self, head: ValueState, journals: MapState, snapshots: MapState) -> None:
        self._head, self._journals, self._snapshots = head, journals, snapshots

    def head(self) -> bytes | None:
        found = self._head.get()
        return None if found is None else bytes(found[0])

    def set_head(self, value: bytes) -> None:
        self._head.update((value,))

    def get(self, name: bytes, part: int) -> bytes | None:
        if part < 0:
            found = self._snapshots.getValue((name, part))
            return None if found is None else a2b_base64(found[0])
        found = self._journals.getValue((name, part))
        return None if found is None else bytes(found[0])

    def put(self, name: bytes, part: int, value: bytes) -> None:
        if part < 0:
            self._snapshots.updateValue((name, part), (b2a_base64(value, newline=False).decode(),))
        else:
            self._journals.updateValue((name, part), (value,))

    def remove(self, name: bytes, part: int) -> None:
        (self._snapshots if part < 0 else self._journals).removeKey((name, part))
