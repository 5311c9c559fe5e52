"""Looks up rows of tables by the ids, hashes and keys that they contain. No Spark.

Only the files that contain a value are read (:mod:`.file_index`). The verdict job finds evidence and verdicts this way,
reassembly the messages that were rebuilt or given up before, refetch what has arrived.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake import tables
from reliable_channel.lake.commit import data_files
from reliable_channel.lake.follow import iterate_rows, read_files
from reliable_channel.lake.read import open_table
from reliable_channel.lake.tables import Table
from reliable_channel.lake.tables.evidence import BRIDGE_SOURCES
from reliable_channel.pipeline.file_index import FileIndex

UNSETTLED = b"\0unsettled"
"""The value in the index for every verdict that is not settled. If a stranger's id equals it, more files are read."""

INDEXED: dict[Table, tuple[str, ...]] = {
    tables.ENVELOPES: ("message_hash",),
    tables.DELIVERIES: ("sds_id", "entire_message_hash"),
    tables.REASSEMBLED_MESSAGES: ("entire_message_hash",),
    tables.INCOMPLETE_MESSAGES: ("entire_message_hash",),
    tables.SENDER_EVENTS: ("sds_id", "send_id", "envelope_hash"),
    tables.SDS_MESSAGES: ("sds_id", "causal_history"),
    tables.LOST_DEPENDENCIES: ("sds_id",),
    tables.ACKS: ("sds_id",),
    tables.REPAIR_REQUESTS: ("sds_id",),
    tables.CHANNEL_EVENTS: ("sds_id",),
    tables.STORE_PRESENCE: ("sds_id", "message_hash"),
    tables.SIGHTINGS: ("message_hash", "source"),
    tables.QUARANTINE: ("message_hash", "stage", "raw"),
    tables.DELIVERY_STATUS: ("sds_ids", "message_key", "entire_message_hash", "settled"),
}
"""The columns by which rows are looked up; ``stage`` and ``raw`` for the ids in undecodable records, ``source`` for the
rows of logs alone, ``settled`` for :data:`UNSETTLED`."""

SDS_ID_TAG = b"\x12"
"""The byte before the SDS message id on the wire: field 2, length-delimited (LIP-109)."""

UNDECODED = ("envelope", "sds")
"""The stages of ``quarantine`` whose records may be a message of which nothing could be decoded."""

SEARCHED_BYTES = 8 * 1024
"""How much of an undecodable record is read to find its SDS id: before it are a few bytes of the envelope, and the
sender's id, of 4 KiB at most."""

MOST_TAGS = 16
"""How many positions of a record are taken for that of its id. In front of a genuine id few bytes are
:data:`SDS_ID_TAG`. Without a limit every second byte of a stranger's record is one: 300 records of 64 KiB had ten
million ids, and took the verdict job 3 GB and a minute and a half."""


class Lookup:
    """Looks up rows in some ``files`` of one table (their paths). ``index_in``: a local directory for the index, which
    has other tables' indexes too; by default one in the run directory, for the whole tables."""

    def __init__(self, paths: PathSettings, table: Table, files: Collection[str], index_in: str | None = None) -> None:
        self._paths, self._table, self._files = paths, table, files
        columns = zlib.crc32(repr(INDEXED[table]).encode())  # another version may look rows up by other columns
        directory = index_in or f"{paths.run_dir}/verdict-index"
        self._index = FileIndex(f"{directory}/{table.name}-{columns:08x}", self._read_values)

    @classmethod
    def of(cls, paths: PathSettings, table: Table) -> Lookup:
        """Looks up rows in the whole table at its newest version."""
        return cls(paths, table, data_files(open_table(paths, table)))

    def files_with(self, values: Iterable[str | bytes]) -> list[str]:
        """The paths of the files that contain one of ``values``, or very rarely only another value with the same
        hash."""
        return sorted(self._index.files_with(self._files, values))

    def iterate(self, columns: Sequence[str], values: Iterable[str | bytes] | None) -> Iterator[pa.Table]:
        """Read some columns of the files that contain one of ``values``, or of all, some rows at a time."""
        files = sorted(self._files) if values is None else self.files_with(values)
        return iterate_rows(self._paths, self._table, files, columns)

    def rows(self, columns: Sequence[str], values: Iterable[str | bytes], where: pc.Expression) -> pa.Table:
        """Read some columns of the rows ``where``, which compares these columns alone, in the files that contain one of
        ``values``."""
        return read_files(self._paths, self._table, self.files_with(values), columns, where)

    def messages(
        self, columns: Sequence[str], values: Iterable[str | bytes], where: pc.Expression, most_named: int
    ) -> pa.Table:
        """:meth:`rows` of ``sds_messages``, with the last ``most_named`` entries of each causal history alone: anybody
        can repeat a message that names a thousand ids."""
        none = read_files(self._paths, self._table, (), columns)
        pieces = (rows.filter(where) for rows in self.iterate(columns, values))
        return pa.concat_tables([none, *(cut_histories(rows, most_named) for rows in pieces)])

    def find_naming(self, ids: Set[str]) -> set[str]:
        """The ids of the messages in ``sds_messages`` whose causal histories name one of ``ids``."""
        return set().union(*(list_naming(rows, ids) for rows in self.iterate(NAMING, ids)))

    def find_suspected(self, ids: Set[str]) -> set[str]:
        """Those of ``ids`` that an undecodable record of ``quarantine`` seems to contain as its own. One record is
        evidence enough, and a stranger can repeat an id in any number: a file is read only until its ids are found."""
        missing, read = {*ids}, set[str]()
        while files := [file for file in self.files_with(missing) if file not in read]:
            for rows in iterate_rows(self._paths, self._table, files[:1], ("stage", "raw")):
                new = missing.intersection(list_suspected(rows))
                missing -= new
                if new and files[0] not in self.files_with(missing):
                    break
            read.add(files[0])
        return {*ids} - missing

    def _read_values(self, file: str) -> Iterator[pa.Array]:
        for rows in iterate_rows(self._paths, self._table, [file], INDEXED[self._table]):
            yield list_values(rows, self._table)


def list_values(rows: pa.Table, table: Table) -> pa.Array:
    """The values by which rows of a table, with its columns ``INDEXED``, are looked up."""
    values: list[pa.Array] = []
    if table is tables.SIGHTINGS:
        rows = rows.filter(pc.invert(pc.is_in(rows["source"], pa.array(BRIDGE_SOURCES))))
    for name in INDEXED[table]:
        column = rows[name].combine_chunks()
        if name == "settled":
            values.append(pa.array([UNSETTLED] if pc.any(pc.invert(column)).as_py() else [], pa.binary()))
        elif name == "raw":
            values.append(pa.array(list_suspected(rows), pa.string()).cast(pa.binary()))
        elif name == "causal_history":
            values.append(list_named_ids(column).cast(pa.binary()))
        elif name not in ("stage", "source"):
            flat = pc.list_flatten(column) if pa.types.is_list(column.type) else column
            values.append(flat.cast(pa.binary()))
    return pa.concat_arrays(values)


def list_named_ids(histories: pa.Array) -> pa.Array:
    """The SDS ids in causal histories, in order."""
    return pc.struct_field(pc.list_flatten(histories), "sds_id")


def cut_histories(rows: pa.Table, most: int) -> pa.Table:
    """``rows`` with only the last ``most`` entries of each causal history."""
    histories = rows["causal_history"].combine_chunks()
    ends = histories.offsets.to_numpy()[1:]
    first = np.maximum(histories.offsets.to_numpy()[:-1], ends - most)
    offsets = np.concatenate([[0], np.cumsum(ends - first)])
    kept = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], ends - first)
    cut = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), histories.values.take(pa.array(kept)), histories.type, mask=histories.is_null()
    )
    return rows.set_column(rows.schema.get_field_index("causal_history"), rows.schema.field("causal_history"), cut)


NAMING = ("sds_id", "causal_history")
"""The columns of ``sds_messages`` that :func:`list_naming` reads."""


def list_naming(rows: pa.Table, ids: Set[str]) -> set[str]:
    """The SDS ids of the messages among ``rows`` whose causal histories name one of ``ids``."""
    histories = rows["causal_history"].combine_chunks()
    named = pc.is_in(list_named_ids(histories), pa.array(sorted(ids), pa.string()))
    at = pc.list_parent_indices(histories).filter(named)
    return {*rows["sds_id"].combine_chunks().take(at).drop_null().to_pylist()}


def list_suspected(rows: pa.Table | pa.RecordBatch) -> list[str]:
    """The different :func:`search_ids` rows of ``quarantine`` with the columns ``stage`` and ``raw``, in order."""
    return sorted(set().union(*map(search_ids, rows["stage"].to_pylist(), rows["raw"].to_pylist())))


def search_ids(stage: str, raw: bytes | None) -> set[str]:
    """The SDS ids that a record of ``quarantine`` seems to contain as its own, if it could not be decoded.

    These are the texts (up to 127 bytes) where a message has its id: behind the first :data:`MOST_TAGS` tags in the
    first :data:`SEARCHED_BYTES`."""
    if stage not in UNDECODED or raw is None:
        return set()
    raw = raw[:SEARCHED_BYTES]
    texts = {
        raw[at + 1 : at + 1 + raw[at]]
        for at in map(re.Match.end, islice(re.finditer(SDS_ID_TAG, raw), MOST_TAGS))
        if at < len(raw) and 0 < raw[at] < 128 and at + 1 + raw[at] <= len(raw)
    }
    return {text for value in texts if (text := _decode_text(value)) is not None}


def _decode_text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def is_among(column: str, values: Collection[str] | Collection[bytes]) -> pc.Expression:
    """An expression for: ``column`` has one of ``values``."""
    # An empty array has no type, which Arrow refuses to compare.
    return pc.field(column).isin(pa.array(sorted(values))) if values else pc.scalar(False)
