"""The reassembly query: rebuilds payloads from segments, and passes on all SDS messages in record order.

Reads ``sds_messages``; writes ``ordered_sds_messages``, ``reassembled_messages``, ``incomplete_messages`` and
``channel_events``. Rows that need no state pass straight through. Segments go to the combiner, which rebuilds and
writes the sets that are complete within the micro-batch; the rest goes to keyed state, as one binary value for each
hash. The combiner's reports to the driver pass through the same operator without a hash: a second branch of the plan
would run the combiner twice. Only the Reassembler removes duplicates, because no earlier step knows which copy came
first (docs/pipeline.md *Reassembly*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.lake.append import BatchSink
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.open_hashes import HashDue, read_open_hashes
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    CHANNEL_EVENTS,
    INCOMPLETE_MESSAGES,
    ORDERED_SDS_MESSAGES,
    REASSEMBLED_MESSAGES,
)
from reliable_channel.pipeline.reassembly.already_reported import drop_already_reported
from reliable_channel.pipeline.reassembly.combiner import HASH, INPUT_COLUMNS, Combiner, ForState
from reliable_channel.pipeline.reassembly.set_results import ReportedSet
from reliable_channel.pipeline.reassembly.sets import (
    STATE_VERSION,
    HashSets,
    SegmentDecryptor,
    SegmentRow,
    Tick,
    take_rows,
)
from reliable_channel.pipeline.result_files import RESULTS, pack, write_results

TABLES_WRITTEN = (ORDERED_SDS_MESSAGES, REASSEMBLED_MESSAGES, INCOMPLETE_MESSAGES, CHANNEL_EVENTS)
TICK_SUB_ORDER = 1_000_000
"""Ticks are ordered after all rows of the preceding record."""

_GIVEN = f"{HASH} binary, given binary"
_OUT = "kind string, results binary"
_STATE = "version int, blob binary"
_NEED_STATE = f"sds_kind = 'tick' or segment_kind in ('data', 'parity') and content is not null and {HASH} is not null"


def reassemble(settings: Settings) -> Callable[[DataFrame], DataFrame]:
    """The transformation of the stream of ``sds_messages`` to rows of ``ordered_sds_messages`` and packed results of
    reassembly."""

    def transform(segments: DataFrame) -> DataFrame:
        rows = segments.where(_NEED_STATE).withColumn("event_us", F.unix_micros("event_time")).select(*INPUT_COLUMNS)
        # By the hash, so that one task of the combiner sees all segments that a set gets in this micro-batch.
        # Spark shuffles by it once more, since stateful operators enforce their own partitioning; by then the complete
        # sets are gone.
        rows = rows.repartition(F.col(HASH)).mapInArrow(Combiner(settings), _GIVEN)
        # Not transformWithState, with which the job took a third longer: it gets rows one by one, and payloads return
        # through the JVM (docs/decisions.md, *Tried for reassembly and not kept*).
        results = rows.groupBy(HASH).applyInPandasWithState(
            KeyedSets(settings.segmentation, SegmentDecryptor(settings.channels)),
            _OUT,
            _STATE,
            "append",
            # EventTimeTimeout drops late rows before the function gets them, and ProcessingTimeTimeout never ends with
            # availableNow (docs/decisions.md, *Where the first design was wrong or short*).
            GroupStateTimeout.NoTimeout,
        )
        return pass_through(segments).unionByName(results, allowMissingColumns=True)

    return transform


def pass_through(segments: DataFrame) -> DataFrame:
    """The metadata of every SDS message, and the ticks, as rows of ``ordered_sds_messages``; no shuffle, no Python."""
    tick = F.col("sds_kind") == "tick"
    special = {
        "sub_order": F.when(tick, TICK_SUB_ORDER).otherwise(0).cast("int"),
        "row_kind": F.when(tick, "tick").otherwise("message"),
    }
    present = set(segments.columns)
    names = [name for name in ORDERED_SDS_MESSAGES.names() if name in special or name in present]
    return segments.select(
        F.lit(ORDERED_SDS_MESSAGES.name).alias("kind"), *(special.get(name, F.col(name)).alias(name) for name in names)
    )


class KeyedSets:
    """The function for ``applyInPandasWithState``: updates the sets of one hash, and passes the combiner's reports
    on."""

    def __init__(self, config: SegmentationConfig, decrypt: Callable[[SegmentRow], SegmentRow]) -> None:
        self._config, self._decrypt = config, decrypt

    def __call__(
        self, key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        """Apply the rows of one hash to its sets, which come from the state or, for a new hash, from the combiner."""
        given = [bytes(blob) for frame in frames for blob in frame["given"]]
        if key[0] is None:  # reports of the combiner, which belong to no hash
            yield _make_frame(given)
            return
        every = [ForState.from_bytes(blob) for blob in given]
        handed_on = next((each.sets for each in every if each.sets), b"")
        rows = [row for each in every for row in each.rows]
        # A shuffle keeps no order. A tick has the offset of the last record before it, and comes after that record.
        rows.sort(key=lambda row: (row.kafka_partition, row.kafka_offset, isinstance(row, Tick)))
        restored = partial(self._restore, state, handed_on)
        sets = restored(None)
        before = sets.dues() if state.exists else {}
        sets, results = take_rows(sets, restored, rows, self._decrypt)
        blob = sets.to_bytes()
        if blob:
            state.update((STATE_VERSION, blob))
        elif state.exists:
            state.remove()
        if (dues := sets.dues()) != before:
            results.append(
                HashDue(bytes(key[0]), [(*topic_partition, due_us) for topic_partition, due_us in dues.items()])
            )
        if results:
            yield _make_frame(pack(results))

    def _restore(self, state: GroupState, handed_on: bytes, blob: bytes | None) -> HashSets:
        """Restore the sets from ``blob``; without one, the sets at the beginning of the micro-batch, from the state or
        from the combiner."""
        if blob is not None:
            return HashSets.from_bytes(blob, self._config)
        if not state.exists:
            return HashSets.from_bytes(handed_on, self._config) if handed_on else HashSets(self._config)
        version, stored = state.get
        if version != STATE_VERSION:
            raise RuntimeError(
                f"Reassembly state of version {version} is unknown to this program (it writes {STATE_VERSION})."
                " Run the program that wrote it, or start over with `reliable-channel rebuild`."
            )
        if handed_on:
            raise RuntimeError(
                "The state has a hash that the checkpoint's file of open hashes does not name."
                " Start over with `reliable-channel rebuild`."
            )
        return HashSets.from_bytes(bytes(stored), self._config)


def _make_frame(results: Iterable[bytes]) -> pd.DataFrame:
    """Packed results as rows of the operator's output."""
    return pd.DataFrame([(RESULTS, blob) for blob in results], columns=["kind", "results"])


def write_batch(rows: DataFrame, sink: BatchSink) -> None:
    """Write the results of one micro-batch: payloads before the rows that refer to them."""
    sink.open_ahead(REASSEMBLED_MESSAGES, ORDERED_SDS_MESSAGES)
    results = write_results(rows, sink)
    sink.add_files(REASSEMBLED_MESSAGES, results.files)
    incomplete = _write_incomplete(results.of(ReportedSet), sink.paths)
    sink.together(
        *(partial(sink.add_files, table, results.files) for table in (CHANNEL_EVENTS, ORDERED_SDS_MESSAGES)),
        partial(sink.add_files, INCOMPLETE_MESSAGES, incomplete),
    )
    # After the commits, because only the next micro-batch reads the file, and a replay of this one writes it again.
    before = read_open_hashes(sink.paths, sink.batch_id - 1)
    before.apply(results.of(HashDue)).write(sink.paths, sink.batch_id)


def _write_incomplete(reported: Sequence[ReportedSet], paths: PathSettings) -> list[WrittenFile]:
    """Write the reported sets that hold something new to a file of ``incomplete_messages``. They are few."""
    rows = drop_already_reported([each.fields for each in reported], paths) if reported else []
    if not rows:
        return []
    with TaskFiles(paths) as files:
        files.add(INCOMPLETE_MESSAGES, as_arrow(rows, INCOMPLETE_MESSAGES))
        return files.finish()
