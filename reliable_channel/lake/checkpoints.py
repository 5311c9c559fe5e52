"""Reads the checkpoints of streaming queries as plain files, without Spark: how far each query has read.

The position is that of the last *committed* micro-batch. A micro-batch that is only planned runs again at the next
start and needs its rows again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow.fs as pafs

from reliable_channel.config import PathSettings

RECORD = "reliable-channel.json"
"""The file in a checkpoint with what it was made for (:func:`read_record`)."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """One entry of an offset log: the end of a micro-batch.

    ``delta``: id of the table → the next commit to read. ``kafka``: topic → partition → the next offset to read.
    ``conf``: the settings that Spark stored with the micro-batch. ``batch_time_ms``: when the micro-batch was planned,
    Unix ms."""

    delta: Mapping[str, int] = field(default_factory=dict)
    kafka: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    batch_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint of one query. ``committed`` and ``planned`` are micro-batches, ``None`` before the first one;
    ``operators``: the number of stateful operators. ``offsets`` belong to ``committed``; before the first commit they
    are the start of the source. ``running_since_ms``: when the micro-batch that is not yet committed was planned, Unix
    ms."""

    query: str
    query_id: str | None
    committed: int | None
    planned: int | None
    operators: int
    offsets: Offsets
    running_since_ms: int | None = None

    @property
    def interrupted(self) -> bool:
        """Whether a micro-batch was planned and not committed: it runs again at the next start."""
        return self.planned is not None and (self.committed is None or self.planned > self.committed)


def parse_offsets(text: str) -> Offsets:
    """Parse one file of an offset log. Unknown entries are ignored, because a newer Spark may write more.

    There is one line per source. A query that reads a table twice has two, and the earlier position counts."""
    conf: dict[str, str] = {}
    time_ms: int | None = None
    delta: dict[str, int] = {}
    kafka: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        entry = as_object(line)
        if "batchTimestampMs" in entry:
            time_ms = int(entry["batchTimestampMs"])
            conf = {str(key): str(value) for key, value in entry.get("conf", {}).items()}
        elif "reservoirId" in entry:
            table, version = str(entry["reservoirId"]), int(entry["reservoirVersion"])
            delta[table] = min(version, delta.get(table, version))
        else:
            for topic, partitions in entry.items():
                if isinstance(partitions, dict) and all(str(p).isdigit() for p in partitions):
                    kafka[topic] = {int(p): int(offset) for p, offset in partitions.items()}
    return Offsets(delta, kafka, conf, time_ms)


def read_checkpoint(paths: PathSettings, query: str) -> Checkpoint | None:
    """Read the checkpoint of a query; ``None`` when it never started."""
    files, root = filesystem(paths.checkpoint(query))
    metadata = read_text(files, f"{root}/metadata")
    # First: a driver at work plans a micro-batch before it commits it.
    committed = max(_list_numbers(files, f"{root}/commits"), default=None)
    batches = _list_numbers(files, f"{root}/offsets")
    if metadata is None and not batches and committed is None:
        return None
    planned = max(batches, default=None)
    plan = Offsets() if planned is None else _read_offsets(files, f"{root}/offsets/{planned}")
    if committed is not None and committed in batches:
        offsets = plan if committed == planned else _read_offsets(files, f"{root}/offsets/{committed}")
    else:
        offsets = Offsets(dict.fromkeys(plan.delta, 0), {}, plan.conf, plan.batch_time_ms)
    return Checkpoint(
        query,
        as_object(metadata or "").get("id"),
        committed,
        planned,
        len(_list_numbers(files, f"{root}/state")),
        offsets,
        None if planned == committed else plan.batch_time_ms,
    )


def read_start(paths: PathSettings, query: str, batch_id: int) -> Offsets:
    """Where a micro-batch of a query begins to read: at the end of the one before it, or at the start of the source.
    Empty if the checkpoint does not say."""
    files, root = filesystem(paths.checkpoint(query))
    entry = f"offsets/{batch_id - 1}" if batch_id else "sources/0/0"
    return _read_offsets(files, f"{root}/{entry}")


def read_record(paths: PathSettings, query: str) -> dict[str, str]:
    """What the checkpoint of a query was made for, by configuration key; empty for none."""
    files, root = filesystem(paths.checkpoint(query))
    return {str(key): str(value) for key, value in as_object(read_text(files, f"{root}/{RECORD}") or "").items()}


def write_record(paths: PathSettings, query: str, record: Mapping[str, str]) -> None:
    """Replace what :func:`read_record` returns."""
    files, root = filesystem(paths.checkpoint(query))
    files.create_dir(root, recursive=True)
    _replace_file(files, root, f"{root}/{RECORD}", json.dumps(dict(record), indent=1, sort_keys=True))


def repoint_state_schemas(paths: PathSettings, query: str) -> None:
    """Make the state of a query name the schema files in its own checkpoint. Call it before the query starts.

    Spark records them with their whole path (Spark 4.2, ``transformWithState``). In a checkpoint that was moved, as by
    a rebuild, the second micro-batch fails because the file is not in the old place, and so does every later start."""
    location = paths.checkpoint(query)
    files, root = filesystem(location)
    recorded = location if "://" in location else f"file:{root}"
    prefix = json.dumps(recorded, ensure_ascii=False)[:-1]
    for operator in _list_numbers(files, f"{root}/state"):
        directory = f"{root}/state/{operator}/_metadata/v2"
        for number in _list_numbers(files, directory):
            before = read_text(files, f"{directory}/{number}") or ""
            after = re.sub(r'"[^"]*?(?=/state/\d+/_stateSchema/)', lambda _: prefix, before)
            if after == before:
                continue
            _replace_file(files, root, f"{directory}/{number}", after)
            if files.get_file_info(checksum := f"{directory}/.{number}.crc").type == pafs.FileType.File:
                files.delete_file(checksum)  # of the old content; Hadoop does without


def _replace_file(files: Any, root: str, path: str, text: str) -> None:
    """Replace a file of the checkpoint at ``root``, whole or not at all, as object stores do. In place, a full disk
    would leave nothing of it, and no job could start again."""
    fresh = f"{root}/{RECORD}.tmp" if isinstance(files, pafs.LocalFileSystem) else path
    with files.open_output_stream(fresh) as stream:
        stream.write(text.encode())
    if fresh != path:
        files.move(fresh, path)


def _read_offsets(files: Any, entry: str) -> Offsets:
    return parse_offsets(read_text(files, entry) or "")


def read_checkpoints(paths: PathSettings) -> list[Checkpoint]:
    """Read every checkpoint under ``paths.checkpoint_dir``, sorted by name."""
    files, root = filesystem(paths.checkpoint_dir)
    entries = files.get_file_info(pafs.FileSelector(root, allow_not_found=True))
    names = sorted(entry.base_name for entry in entries if entry.type == pafs.FileType.Directory)
    return [checkpoint for name in names if (checkpoint := read_checkpoint(paths, name)) is not None]


def filesystem(location: str) -> tuple[Any, str]:
    """The file system of a path or URI, and the path in it. Arrow knows Hadoop's ``s3a://`` as ``s3://``."""
    if "://" not in location:
        return pafs.LocalFileSystem(), location.rstrip("/")
    files, path = pafs.FileSystem.from_uri(location.replace("s3a://", "s3://", 1))
    return files, path.rstrip("/")


def _list_numbers(files: Any, directory: str) -> set[int]:
    entries = files.get_file_info(pafs.FileSelector(directory, allow_not_found=True))
    return {int(entry.base_name) for entry in entries if entry.base_name.isdigit()}


def read_text(files: Any, path: str) -> str | None:
    if files.get_file_info(path).type != pafs.FileType.File:
        return None
    with files.open_input_stream(path) as stream:
        # A torn file must give a text without meaning (:func:`as_object`), not an exception.
        return bytes(stream.read()).decode("utf-8", errors="replace")


def as_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
