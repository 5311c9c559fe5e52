"""``segments`` to ``sds_input``, ``messages`` and ``incomplete_messages`` (design.md, second hop).

One query: what needs no state passes straight through; segments go through the combiner, which rebuilds what is
complete inside the micro-batch and writes it, and, only where a set stays partial, through keyed state. What the
combiner has to tell the driver travels under a key of its own: two branches would run it twice (design.md, measured).
Duplicates are the Reassembler's affair: nothing before it knows which copy came first (docs/pipeline.md *Reassembly*).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from reliable_channel.config import PathSettings, Settings
from reliable_channel.pipeline import open_keys
from reliable_channel.pipeline.garbage import without_collection
from reliable_channel.pipeline.reassembly import memory
from reliable_channel.pipeline.reassembly.leftovers import without_leftovers
from reliable_channel.pipeline.reassembly.set_results import Result
from reliable_channel.pipeline.reassembly.sets import STATE_VERSION, HashSets, SegmentRow
from reliable_channel.pipeline.reassembly.unsealer import Unsealer
from reliable_channel.pipeline.storage.arrow_schema import ARROW_TYPES, as_arrow
from reliable_channel.pipeline.storage.io import BatchSink
from reliable_channel.pipeline.storage.result_files import (
    RESULTS,
    Fields,
    ResultFiles,
    packed,
    sorted_out,
    written_results,
)
from reliable_channel.pipeline.storage.task_files import TaskFiles, WrittenFile
from reliable_channel.pipeline.tables import (
    CHANNEL_EVENTS,
    INCOMPLETE_MESSAGES,
    MESSAGES,
    SDS_INPUT,
)
from reliable_channel.pipeline.waking import waking
from reliable_channel.segmentation import SegmentationConfig

JOB = "reassembly"
TABLES_WRITTEN = (SDS_INPUT, MESSAGES, INCOMPLETE_MESSAGES, CHANNEL_EVENTS)
TICK_SUB_ORDER = 1_000_000
"""Ticks come after everything of the record before them."""

_PLACE = ("kafka_topic", "kafka_partition", "kafka_offset")

FLUSH_BYTES = 16 * 1024 * 1024
"""So many bytes of payloads the combiner holds before it writes them, and of open sets before it hands them on."""

PASSED = b"#"
"""The key under which the combiner's own results pass the keyed state; no hash is so short."""

_ROW_COLUMNS = {
    "state_key": "binary",
    "kind": "string",
    "kafka_topic": "string",
    "kafka_partition": "int",
    "kafka_offset": "bigint",
    "event_us": "bigint",
    "pubsub_topic": "string",
    "content_topic": "string",
    "channel_id": "string",
    "sender_id": "string",
    "sds_id": "string",
    "lamport_timestamp": "string",  # pandas makes a float of a number beside a null, and large ones are not whole then
    "segment_dialect": "string",
    "content": "binary",
    "sealed": "boolean",
    "sub_order": "int",
}
_ROW = ", ".join(f"{name} {type_}" for name, type_ in _ROW_COLUMNS.items())
_OUT = "kind string, results binary"
_STATE = "version int, blob binary"
_KINDS = {
    "sds": SDS_INPUT.name,
    "repaired": SDS_INPUT.name,
    "completed": SDS_INPUT.name,
    "message": MESSAGES.name,
    "event": CHANNEL_EVENTS.name,
    "incomplete": None,
    "open_key": None,
}
_ARROW = pa.schema([(name, ARROW_TYPES[type_.upper()]) for name, type_ in _ROW_COLUMNS.items()])


def reassembled(settings: Settings, *, combined: bool = True) -> Callable[[DataFrame], DataFrame]:
    """The stream of ``segments`` → rows of kind ``sds`` (with the columns of ``sds_input``) and the results of
    reassembly (kind, coordinates, payload, JSON). Without ``combined`` every segment goes through keyed state: that
    is what the benchmark compares with."""

    def transform(segments: DataFrame) -> DataFrame:
        parts = segments.where("segment_kind in ('data', 'parity') and content is not null").select(*_segment_columns())
        if combined:
            parts = parts.repartition(F.col("state_key")).mapInArrow(combiner(settings), _ROW)
        ticks = (
            segments.where("sds_kind = 'tick'")
            .select("kafka_topic", "kafka_partition", "kafka_offset", F.unix_micros("event_time").alias("event_us"))
            .mapInPandas(woken(settings.paths), _ROW)
        )
        results = (
            parts.unionByName(ticks)
            .groupBy("state_key")
            .applyInPandasWithState(
                stateful(settings.segmentation, Unsealer(settings.channels)),
                _OUT,
                _STATE,
                "append",
                GroupStateTimeout.NoTimeout,
            )
        )
        return passed_through(segments).unionByName(results, allowMissingColumns=True)

    return transform


def passed_through(segments: DataFrame) -> DataFrame:
    """The metadata of every SDS message, and the ticks, as rows of ``sds_input``; no shuffle, no Python."""
    tick = F.col("sds_kind") == "tick"
    special = {
        "sub_order": F.when(tick, TICK_SUB_ORDER).otherwise(0).cast("int"),
        "row_kind": F.when(tick, "tick").otherwise("message"),
    }
    present = set(segments.columns)
    names = [name for name in SDS_INPUT.names() if name in special or name in present]
    return segments.select(F.lit("sds").alias("kind"), *(special.get(name, F.col(name)).alias(name) for name in names))


def _segment_columns() -> list[Any]:
    special = {
        "state_key": F.col("entire_message_hash"),
        "kind": F.lit("segment"),
        "event_us": F.unix_micros("event_time"),
        "lamport_timestamp": F.col("lamport_timestamp").cast("string"),
        "sub_order": F.lit(0),
    }
    return [special.get(name, F.col(name)).alias(name) for name in _ROW_COLUMNS]


def combiner(settings: Settings) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Rebuild what is complete inside the micro-batch, in record order, and write it; hand on the sets that stay open,
    as they are.

    A hash that is in state goes there with all its rows; of any other, what ``messages`` remembers is where it begins.
    Either way its rows meet what they would have met in one micro-batch, so the cut decides nothing."""
    unseal = Unsealer(settings.channels)
    paths, config = settings.paths, settings.segmentation

    def combine(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with without_collection():
            yield from combined(batches)

    def combined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        collected = [batch for batch in batches if batch.num_rows]
        if not collected:
            return
        table = pa.Table.from_batches(collected)
        by_hash: dict[bytes, list[int]] = {}
        order = pc.sort_indices(table, [("kafka_partition", "ascending"), ("kafka_offset", "ascending")])
        keys = table["state_key"].to_pylist()
        for index in order.to_pylist():
            by_hash.setdefault(keys[index], []).append(index)
        in_state = open_keys.open_keys(paths, JOB)
        places = set(zip(*(table[n].to_pylist() for n in _PLACE), strict=True))
        since = pc.min(table["event_us"]).as_py() - config.completed_memory_ms * 1000
        done = memory.completed_before(paths, by_hash.keys(), since, places)
        handed_on: list[int] = []
        told: list[dict[str, Any]] = []
        results: list[tuple[str, Fields]] = []
        size = told_size = 0
        columns = {name: _values(name, table[name]) for name in SegmentRow._fields}

        def segment(index: int) -> SegmentRow:
            return SegmentRow._make([values[index] for values in columns.values()])

        with ResultFiles(paths, _KINDS) as files:
            for hash_, indices in by_hash.items():
                if in_state.is_open(hash_.hex()):
                    handed_on += indices
                    continue
                sets = HashSets(config, done.get(hash_, ()))
                complete = [result for index in indices for result in sets.add(unseal(segment(index)))]
                results += [result.packable() for result in complete]
                size += sum(len(result.payload or b"") for result in complete)
                if size > FLUSH_BYTES:
                    files.add(sorted_out(results, _KINDS))
                    results, size = [], 0
                if sets.untold and (blob := sets.to_bytes()):
                    last = {n: columns[n][indices[-1]] for n in _PLACE}
                    told.append({"state_key": hash_, "kind": "sets", "content": blob, "sub_order": 0, **last})
                    told_size += len(blob)
                if told_size > FLUSH_BYTES:
                    yield pa.RecordBatch.from_pylist(told, schema=_ARROW)
                    told, told_size = [], 0
            files.add(sorted_out(results, _KINDS))
            told += (
                {"state_key": PASSED, "kind": RESULTS, "content": blob} for blob in packed(files.handed_on(), _KINDS)
            )
        if told:
            yield pa.RecordBatch.from_pylist(told, schema=_ARROW)
        if handed_on:
            yield from table.take(pa.array(handed_on)).cast(_ARROW).to_batches()

    return combine


def _values(name: str, column: pa.ChunkedArray) -> list[Any] | _OneByOne:
    match name:
        case "content":
            return _OneByOne(column)
        case "lamport_timestamp":
            return [None if digits is None else int(digits) for digits in column.to_pylist()]
        case _:
            return list(column.to_pylist())


class _OneByOne:
    """A column of payloads: they become Python objects as they are asked for; the rest of the rows is small and is read
    at once."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __getitem__(self, index: int) -> Any:
        return self._column[index].as_py()


def woken(paths: PathSettings) -> Callable[[Iterator[pd.DataFrame]], Iterator[pd.DataFrame]]:
    """Tick rows → one row for every key whose timer is due."""
    return waking(paths, JOB, _ROW_COLUMNS, lambda key: {"state_key": bytes.fromhex(key), "kind": "tick"})


def stateful(
    config: SegmentationConfig, unseal: Callable[[SegmentRow], SegmentRow]
) -> Callable[[tuple[Any, ...], Iterator[pd.DataFrame], GroupState], Iterator[pd.DataFrame]]:
    """The function of ``applyInPandasWithState``: one hash's sets, or what the combiner has written, which only
    passes."""

    def update(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        hash_ = bytes(key[0])
        if hash_ == PASSED:
            for frame in frames:
                yield frame.rename(columns={"content": "results"})[["kind", "results"]]
            return
        rows = [row for frame in frames for row in frame.to_dict("records")]
        sets = _restored(state, [bytes(row["content"]) for row in rows if row["kind"] == "sets"], config)
        before = sets.dues() if state.exists else {}
        results: list[Result] = []
        for row in sorted(rows, key=lambda r: (r["kafka_partition"], r["kafka_offset"], r["kind"] == "tick")):
            if row["kind"] == "tick":
                place = (row["kafka_topic"], int(row["kafka_partition"]))
                results += sets.tick(place, int(row["kafka_offset"]), int(row["event_us"]))
            elif row["kind"] == "segment":
                results += sets.add(unseal(_segment_row(row)))
        blob = sets.to_bytes()
        if blob:
            state.update((STATE_VERSION, blob))
        elif state.exists:
            state.remove()
        after = sets.dues()
        for place in {*before, *after}:
            if before.get(place) != after.get(place):
                change = {"key": hash_.hex(), "due": after.get(place)}
                results.append(Result("open_key", *place, 0, 0, None, change))
        if results:
            blobs = packed([result.packable() for result in results], _KINDS)
            yield pd.DataFrame([(RESULTS, blob) for blob in blobs], columns=["kind", "results"])

    return update


def _restored(state: GroupState, handed_on: list[bytes], config: SegmentationConfig) -> HashSets:
    """The sets of a hash: those in state, or those that the combiner has handed on."""
    if not state.exists:
        return HashSets.from_bytes(handed_on[0], config) if handed_on else HashSets(config)
    version, blob = state.get
    if version != STATE_VERSION:
        raise RuntimeError(
            f"Reassembly state of version {version} is unknown to this program (it writes {STATE_VERSION})."
            " Run the program that wrote it, or start anew with `reliable-channel rebuild`."
        )
    if handed_on:
        raise RuntimeError(
            "A hash is in state that open_keys does not name: rows of it are missing there."
            " Start anew with `reliable-channel rebuild`."
        )
    return HashSets.from_bytes(bytes(blob), config)


def _segment_row(row: dict[str, Any]) -> SegmentRow:
    lamport = row["lamport_timestamp"]
    fields = {name: row[name] for name in SegmentRow._fields}
    return SegmentRow(
        **{
            **fields,
            "kafka_partition": int(row["kafka_partition"]),
            "kafka_offset": int(row["kafka_offset"]),
            "event_us": int(row["event_us"]),
            "lamport_timestamp": None if pd.isna(lamport) else int(lamport),
            "content": bytes(row["content"]),
            "sealed": row["sealed"] is True,
        }
    )


class ReassemblyWriter:
    """Writes the results of one micro-batch: payloads before the rows that lead readers to them."""

    def __init__(self, settings: Settings) -> None:
        self._paths = settings.paths

    def __call__(self, rows: DataFrame, sink: BatchSink) -> None:
        results = written_results(rows, self._paths, _KINDS)
        sink.add_files(MESSAGES, results.files)
        given_up = _incomplete_files(results.told.get("incomplete", ()), self._paths)
        sink.together(
            *(partial(sink.add_files, table, results.files) for table in (CHANNEL_EVENTS, SDS_INPUT)),
            partial(sink.add_files, INCOMPLETE_MESSAGES, given_up),
            partial(open_keys.record, sink, JOB, open_keys.changes_of(results.told.get("open_key", ()))),
        )


def _incomplete_files(given_up: Sequence[Mapping[str, Any]], paths: PathSettings) -> list[WrittenFile]:
    """The sets that were given up and hold something new, as a file of ``incomplete_messages``: they are few."""
    rows = without_leftovers(given_up, paths) if given_up else []
    if not rows:
        return []
    with TaskFiles(paths) as files:
        files.add(INCOMPLETE_MESSAGES, as_arrow(rows, INCOMPLETE_MESSAGES))
        return files.finish()


__all__ = ["JOB", "TABLES_WRITTEN", "ReassemblyWriter", "reassembled"]
