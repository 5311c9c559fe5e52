"""Writes the version checksum file of a commit (``<version>.crc``), as Delta's protocol recommends.

delta-rs writes none. Without it Spark runs a job to compute protocol and metadata of every new version, which takes a
tenth of a second each time a stream looks for new commits (docs/measurements-history.md). The file is optional: a
reader that does not find it, or finds it incomplete, reads the log.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
from deltalake import DeltaTable

from reliable_channel.config import PathSettings
from reliable_channel.lake.checkpoints import as_object, filesystem, read_text
from reliable_channel.lake.tables import Table

if TYPE_CHECKING:
    from reliable_channel.lake.files import WrittenFile


def write_checksum(table: DeltaTable, added: Sequence[WrittenFile]) -> None:
    """Write the checksum of the commit that has just added these files to ``table``, opened before it.

    Writes nothing if other writers have committed since, or if the file cannot be written: the commit is valid without
    it."""
    before = table.version()
    files, root = filesystem(table.table_uri)
    log = f"{root}/_delta_log/"
    with suppress(OSError):
        # Two versions above the one that was opened: another writer's commit is one of the two, before or after ours.
        if files.get_file_info(f"{log}{before + 2:020d}.json").type is not pafs.FileType.NotFound:
            return
        known = as_object(read_text(files, f"{log}{before:020d}.crc") or "")
        size, count = known.get("tableSizeBytes"), known.get("numFiles")
        if not isinstance(size, int) or not isinstance(count, int):
            sizes = pa.table(table.get_add_actions())["size_bytes"]
            size, count = pc.sum(sizes, min_count=0).as_py(), len(sizes)
        size, count = size + sum(file.bytes for file in added), count + len(added)
        sums = {"tableSizeBytes": size, "numFiles": count, "numMetadata": 1, "numProtocol": 1}
        with files.open_output_stream(f"{log}{before + 1:020d}.crc") as stream:
            stream.write(json.dumps(sums | _describe(table)).encode())


def remove_checksums(paths: PathSettings, table: Table, before: int) -> None:
    """Delete the checksums of versions ``before`` this one. Readers use only the newest, and cleaning the log does not
    delete the others."""
    files, root = filesystem(paths.table(table.name))
    for entry in files.get_file_info(pafs.FileSelector(f"{root}/_delta_log")):
        version, _, suffix = entry.base_name.partition(".")
        if suffix == "crc" and version.isdigit() and int(version) < before:
            files.delete_file(entry.path)


def _describe(table: DeltaTable) -> dict[str, Any]:
    """The metadata and protocol of a table, in the form of the actions in its log."""
    metadata, protocol = table.metadata(), table.protocol()
    features = {"readerFeatures": protocol.reader_features, "writerFeatures": protocol.writer_features}
    return {
        "metadata": {
            "id": metadata.id,
            "name": metadata.name,
            "description": metadata.description,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": table.schema().to_json(),
            "partitionColumns": metadata.partition_columns,
            "configuration": metadata.configuration,
            "createdTime": metadata.created_time,
        },
        "protocol": {
            "minReaderVersion": protocol.min_reader_version,
            "minWriterVersion": protocol.min_writer_version,
            **{name: some for name, some in features.items() if some is not None},
        },
    }
