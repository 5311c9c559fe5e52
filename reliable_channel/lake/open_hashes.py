"""Stores which payload hashes have state in the reassembly job, and when each is due: one file for every micro-batch.

Spark calls a stateful function only for keys with rows, and tells nobody which keys have state. So the driver writes
the open hashes after each micro-batch to a file in the job's checkpoint, and the tasks of the next one read it. A file
names all of them, so nothing must be followed, cached or maintained. A replay reads the file of the micro-batch before
it, and replaces its own. A table of changes was the alternative (docs/decisions.md, *Where the first design was wrong
or short*).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.tables import TopicPartition

JOB = "reassembly"

KEPT = 4
"""How many files stay. A replay needs the one before its own; more of them let two drivers that were started by mistake
on one checkpoint run into the error that names their fault."""

_SCHEMA = pa.schema(
    [
        ("entire_message_hash", pa.binary()),
        ("kafka_topic", pa.string()),
        ("kafka_partition", pa.int32()),
        ("due_us", pa.int64()),
    ]
)
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


class HashDue(NamedTuple):
    """What a micro-batch changed of one hash: ``dues`` has, for each Kafka partition with sets of it, the topic,
    the partition and the event time (µs) of the next timer. Empty: the hash has no state any more."""

    entire_message_hash: bytes
    dues: Sequence[tuple[str, int, int]]


class OpenHashes:
    """The hashes with state, and when they are due."""

    def __init__(self, rows: pa.Table | None = None) -> None:
        self._rows = pa.Table.from_batches([], _SCHEMA) if rows is None else rows  # builds no array: that loads pandas

    @property
    def count(self) -> int:
        """The number of timers: one for each hash and Kafka partition."""
        return int(self._rows.num_rows)

    @property
    def next_due_us(self) -> int | None:
        """The earliest due time (event time, µs)."""
        least: int | None = pc.min(self._rows["due_us"]).as_py()
        return least

    def select_open(self, hashes: Collection[bytes]) -> set[bytes]:
        """Those of ``hashes`` that are open."""
        return set(self._select_hashes(pc.is_in(self._rows["entire_message_hash"], _to_array(hashes))))

    def due(self, topic_partition: TopicPartition, until_us: int) -> list[bytes]:
        """The hashes with sets of one Kafka partition of which something is due by ``until_us`` (event time, µs)."""
        here = pc.and_(
            pc.equal(self._rows["kafka_topic"], topic_partition[0]),
            pc.equal(self._rows["kafka_partition"], topic_partition[1]),
        )
        return self._select_hashes(pc.and_(here, pc.less_equal(self._rows["due_us"], until_us)))

    def apply(self, changes: Sequence[HashDue]) -> OpenHashes:
        """The open hashes after a micro-batch with these changes, at most one of each hash."""
        changed = [change.entire_message_hash for change in changes]
        others = self._rows.filter(pc.invert(pc.is_in(self._rows["entire_message_hash"], _to_array(changed))))
        rows = [(hash_, *due) for hash_, change in zip(changed, changes, strict=True) for due in change.dues]
        added = pa.table([[*column] for column in zip(*rows, strict=True)], schema=_SCHEMA) if rows else None
        return OpenHashes(pa.concat_tables([others, added]).combine_chunks() if added else others)

    def _select_hashes(self, wanted: pa.ChunkedArray) -> list[bytes]:
        hashes: list[bytes] = self._rows["entire_message_hash"].filter(wanted).to_pylist()
        return hashes

    def write(self, paths: PathSettings, batch_id: int) -> None:
        """Write the file of a micro-batch, and remove old ones."""
        files, root = _locate_directory(paths)
        files.create_dir(root, recursive=True)
        # In place, without a rename: a file that is cut short belongs to a micro-batch that was not committed, and its
        # replay writes it again before anybody reads it.
        with (
            files.open_output_stream(_name_file(root, batch_id)) as stream,
            pa.ipc.new_file(stream, _SCHEMA, options=_OPTIONS) as writer,
        ):
            writer.write_table(self._rows)
        old = _name_file(root, batch_id - KEPT)
        if files.get_file_info(old).type == pafs.FileType.File:
            files.delete_file(old)


def read_open_hashes(paths: PathSettings, batch_id: int) -> OpenHashes:
    """The open hashes after micro-batch ``batch_id``; there are none before micro-batch 0. Raises ``EnvironmentFault``
    if its file is missing."""
    if batch_id < 0:
        return OpenHashes()
    files, root = _locate_directory(paths)
    path = _name_file(root, batch_id)
    if files.get_file_info(path).type != pafs.FileType.File:
        raise EnvironmentFault(
            f"The checkpoint of {JOB} lacks {path}, which names the hashes with state.",
            "Restore the checkpoint from a copy, or start over with `reliable-channel rebuild`.",
        )
    with files.open_input_file(path) as stream:
        return OpenHashes(pa.ipc.open_file(stream).read_all())


def _locate_directory(paths: PathSettings) -> tuple[pafs.FileSystem, str]:
    files, root = filesystem(paths.checkpoint(JOB))
    return files, f"{root}/open_hashes"


def _name_file(root: str, batch_id: int) -> str:
    return f"{root}/{batch_id}.arrow"


def _to_array(hashes: Collection[bytes]) -> pa.Array:
    return pa.array([*hashes], pa.binary())
