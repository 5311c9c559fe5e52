"""Finds the files of a table that contain any of some values (SDS ids, hashes, keys), without reading others. No Spark.

Ids are hashes, so the minimum and maximum values in Delta's log exclude no file. This index keeps a sorted 64-bit hash
of every value by which rows are looked up, with the file that contains it. Data files never change, so each is indexed
once. A look-up reads a few pages of each pack through a memory map, whatever the number of rows (docs/pipeline.md, *A
round judges what can have changed*).

The index is a cache on a local disk, which the processes of a machine share: if any of it is deleted, the next look-up
reads more, with the same result. Packs are merged as they grow, so there are only about log2(rows) of them.
"""

from __future__ import annotations

import fcntl
import json
import os
import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from reliable_channel.transport.private_files import private_directory

Hashes = npt.NDArray[np.uint64]
_SCHEMA = pa.schema([("hash", pa.uint64()), ("file", pa.uint32())])
_FILES = b"files"


class FileIndex:
    """The index of one table in ``directory``, on this machine's disk.

    ``values_in``: a data file's path → the values in it, as binary arrays."""

    def __init__(self, directory: Path | str, values_in: Callable[[str], Iterable[pa.Array]]) -> None:
        self._directory, self._values_in = Path(directory), values_in

    def files_with(self, files: Collection[str], values: Iterable[str | bytes]) -> set[str]:
        """The subset of ``files`` that contain one of ``values``. ``files`` are all files of the table at one version,
        or all that anybody looks values up in.

        Two values may have the same hash, so very rarely a returned file contains none of them."""
        wanted = hash_values(pa.array([v.encode() if isinstance(v, str) else v for v in values], pa.binary()))
        some: set[str] = set()
        private_directory(self._directory)
        with (self._directory / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # else several processes would read the same new files
            packs = self._open_packs(set(files))
        # Without the lock: a pack that another process merges and deletes now can still be read through its memory map.
        for pack in packs:
            some |= pack.files_with(wanted)
        return some & set(files)  # a pack may also cover files that the table no longer has

    def _open_packs(self, live: set[str]) -> list[_Pack]:
        """The packs that cover all ``live`` files. Packs without any of these files are deleted."""
        packs: list[_Pack] = []
        for unfinished in self._directory.glob("*.tmp"):  # of a process that was killed, or on a full disk
            unfinished.unlink()
        for path in self._directory.glob("*.arrow"):
            pack = _Pack.open(path)
            if pack is None or live.isdisjoint(pack.files):
                path.unlink(missing_ok=True)
            else:
                packs.append(pack)
        packs.sort(key=lambda pack: -len(pack.hashes))
        new = sorted(live.difference(*(pack.files for pack in packs)))
        if new:
            packs += self._merge([_make_pack(new, [self._hash_file(file) for file in new])], [])
        # Each pack is at least twice as large as the next one, so a look-up searches few, and a hash is merged as often
        # as there are packs, not once for every new file.
        while len(packs) > 1 and len(packs[-2].hashes) < 2 * len(packs[-1].hashes):
            packs[-2:] = self._merge([pack.of(live) for pack in packs[-2:]], packs[-2:])
            packs.sort(key=lambda pack: -len(pack.hashes))
        return packs

    def _hash_file(self, file: str) -> Hashes:
        none = np.array([], np.uint64)
        return np.unique(np.concatenate([none, *map(hash_values, self._values_in(file))]))

    def _merge(self, parts: Sequence[_Pack], instead: Sequence[_Pack]) -> list[_Pack]:
        """Merge several packs into one, and replace those on disk."""
        files = [file for part in parts for file in part.files]
        starts = np.cumsum([0, *(len(part.files) for part in parts)])
        hashes = np.concatenate([part.hashes for part in parts])
        owners = np.concatenate([part.owners + np.uint32(at) for part, at in zip(parts, starts[:-1], strict=True)])
        # NumPy's stable sort merges runs that are sorted already: of two, in a seventh of the time of its default.
        order = np.argsort(hashes, kind="stable")
        schema = _SCHEMA.with_metadata({_FILES: json.dumps(files).encode()})
        path = self._directory / f"{uuid.uuid4()}.arrow"
        fresh = path.with_suffix(".tmp")
        with fresh.open("wb") as raw:
            with pa.ipc.new_file(raw, schema) as out:
                # One chunk, because a pack is read as one array from the memory map.
                columns = [hashes[order], owners[order]]
                out.write_table(pa.table(columns, schema=schema), max_chunksize=len(order) or None)
            raw.flush()
            os.fsync(raw.fileno())  # else a power failure could leave the new name without the bytes
        fresh.replace(path)
        for old in instead:
            assert old.path is not None  # noqa: S101  for the type checker
            old.path.unlink(missing_ok=True)
        written = _Pack.open(path)
        return [_Pack(None, files, hashes[order], owners[order]) if written is None else written]


class _Pack(NamedTuple):
    """The sorted hashes of the values in some files, and for each the index of its file in ``files``."""

    path: Path | None
    files: list[str]
    hashes: Hashes
    owners: npt.NDArray[np.uint32]

    @staticmethod
    def open(path: Path) -> _Pack | None:
        """Open a pack on disk; ``None`` if it is damaged."""
        with suppress(OSError, pa.ArrowInvalid, KeyError, ValueError):
            rows = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
            files = json.loads(rows.schema.metadata[_FILES])
            columns: list[Any] = [
                rows[name].chunk(0).to_numpy() if rows.num_rows else np.array([], rows[name].type.to_pandas_dtype())
                for name in _SCHEMA.names
            ]
            return _Pack(path, files, *columns)
        return None

    def files_with(self, wanted: Hashes) -> set[str]:
        first = np.searchsorted(self.hashes, wanted, "left")
        last = np.searchsorted(self.hashes, wanted, "right")
        counts = last - first
        further = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        owners = self.owners[np.repeat(first, counts) + further]
        return {self.files[owner] for owner in np.unique(owners).tolist()}

    def of(self, live: set[str]) -> _Pack:
        """This pack without files that no longer belong to the table."""
        kept = np.array([file in live for file in self.files], bool)
        there = kept[self.owners]
        numbers = np.cumsum(kept, dtype=np.uint32) - np.uint32(1)
        files = [file for file in self.files if file in live]
        return _Pack(self.path, files, self.hashes[there], numbers[self.owners[there]])


def hash_values(values: pa.Array) -> Hashes:
    """The distinct hashes of a binary array, sorted."""
    # The same in every process, which Python's own hash is not. Without categories, since ids rarely repeat.
    hashes: Hashes = pd.util.hash_array(values.drop_null().to_numpy(zero_copy_only=False), categorize=False)
    return np.unique(hashes)


def _make_pack(files: list[str], hashes: Sequence[Hashes]) -> _Pack:
    owners = np.repeat(np.arange(len(files), dtype=np.uint32), [len(each) for each in hashes])
    return _Pack(None, files, np.concatenate(hashes), owners)
