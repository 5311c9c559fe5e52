"""Reads files of node logs and adds what they show to ``sightings``, each sighting once.

A sighting is identified by what it is: message, node, peer, kind and time. Those that the table has already are left
out, so reading a file again, after it was rotated, compressed or continued, or after an interruption, adds only what is
new. Rows are written in parts, in memory of bounded size. Two such writers at once exclude each other by an
application transaction.
"""

from __future__ import annotations

import gzip
import select
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import zstandard
from deltalake import Transaction

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.evidence.node_logs import LogSighting, Unread, may_matter, parse_line
from reliable_channel.lake.append import append_rows, open_to_write
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import dataset_of
from reliable_channel.lake.retry import retry_on_conflict
from reliable_channel.lake.schema import of_columns
from reliable_channel.lake.tables import SIGHTINGS

CHUNK_BYTES = 1 << 20
MAX_LINE_BYTES = 64 * 1024
ROWS_AT_ONCE = 200_000
"""About how many sightings are held in memory before they are written."""
WAIT_S = 5.0
"""How long what was read from a pipe may wait for more before it is written."""
_APPLICATION = "node-logs"
_KEY = ("message_hash", "vantage", "node", "source", "seen_at")
_Key = tuple[bytes, str | None, str | None, str, int]


@dataclass
class LogCounts:
    """What was read. ``sightings``: in the lines, ``new``: those that the table did not have; ``unknown``: text of
    lines that name a message but are no known event → how many; ``unnamed``: lines of a topic that name no node;
    ``withheld``: its records that Kafka withholds until a transaction ends."""

    lines: int = 0
    sightings: int = 0
    new: int = 0
    too_long: int = 0
    no_time: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    unnamed: int = 0
    withheld: int = 0


def read_logs(paths: PathSettings, files: Sequence[Path], node: str | None = None) -> LogCounts:
    """Add the sightings in ``files`` (text, gzip or zstd; ``-``: standard input) to the table.

    ``node``: the name of the node; without it, its peer id in the log. Raises ``LocalError`` for a log that names no
    node, and ``EnvironmentFault`` for a file that cannot be read; what was written before stays."""
    create_tables(paths, (SIGHTINGS,))
    counts = LogCounts()
    for file in files:
        try:
            with file.open("rb") if str(file) != "-" else nullcontext(sys.stdin.buffer) as stream:
                _LogReader(paths, str(file), node, counts).read(stream)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise EnvironmentFault(
                f"The log {file} cannot be read: {getattr(error, 'strerror', None) or error}.",
                "Check the file and read it again; sightings that were read before are kept.",
            ) from error
    return counts


class _LogReader:
    """Reads one log and writes its sightings in parts."""

    def __init__(self, paths: PathSettings, name: str, node: str | None, counts: LogCounts) -> None:
        self._name, self._node, self._counts = name, node, counts
        self._own_id: str | None = None
        self._pending = PendingSightings(paths, counts)

    def read(self, stream: IO[bytes]) -> None:
        for line in _read_lines(stream, self._counts):
            if line is None:
                if self._node or self._own_id:  # else they wait for a line that names the node
                    self._write()
            elif sightings := self._pending.parse(line):
                self._own_id = sightings[-1].node or self._own_id
                self._pending.add(sightings, self._node or self._own_id)
                if len(self._pending) >= ROWS_AT_ONCE:
                    self._write()
        self._write()

    def _write(self) -> None:
        if not len(self._pending):
            return
        if self._node is None and self._own_id is None:
            raise LocalError(f"The log {self._name} does not name its node.", "Give the node a name: --node NAME.")
        self._pending.write(self._own_id)  # also of the lines before the first that has the id


class PendingSightings:
    """Sightings that are not written yet, each once."""

    def __init__(self, paths: PathSettings, counts: LogCounts) -> None:
        self._paths, self._counts = paths, counts
        self._rows: dict[_Key, str | None] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def parse(self, line: bytes) -> Sequence[LogSighting]:
        """The sightings in a line; counts what it holds."""
        result = parse_line(line, time.time_ns() // 1000) if may_matter(line) else None
        if isinstance(result, Unread):
            if result.text is None:
                self._counts.no_time += 1
            # A log may hold any number of texts; a report needs to show some.
            elif result.text in self._counts.unknown or len(self._counts.unknown) < 100:
                self._counts.unknown[result.text] += 1
            return ()
        self._counts.sightings += len(result or ())
        return result or ()

    def add(self, sightings: Sequence[LogSighting], node: str | None) -> None:
        """Hold the sightings of a line of ``node``; ``None``: it is named when they are written."""
        for sighting in sightings:
            key = sighting.message_hash, node, sighting.peer, sighting.kind, sighting.seen_at_us
            self._rows[key] = sighting.pubsub_topic

    def write(self, node: str | None = None) -> None:
        """Append those that the table does not have; ``node`` has those that have no node yet."""
        if not self._rows:
            return
        # Lines before and after the first that names the node may hold the same sighting.
        rows = {(hash_, name or node, *rest): topic for (hash_, name, *rest), topic in self._rows.items()}
        by_name = dict(zip(_KEY, zip(*rows, strict=True), strict=True)) | {"pubsub_topic": [*rows.values()]}
        self._counts.new += _append_new(self._paths, of_columns([by_name[c] for c in SIGHTINGS.names()], SIGHTINGS))
        self._rows = {}


@retry_on_conflict
def _append_new(paths: PathSettings, rows: pa.Table) -> int:
    """Append those rows that the table does not have; returns how many."""
    table = open_to_write(paths, SIGHTINGS)
    bounds = pc.min_max(rows["seen_at"])
    where = pc.field("vantage").isin(rows["vantage"].unique())
    where &= (pc.field("seen_at") >= bounds["min"]) & (pc.field("seen_at") <= bounds["max"])
    # A node without years in its log takes them from the messages: between two of strangers may be all that it did.
    where &= pc.field("message_hash").isin(rows["message_hash"].unique())
    known = dataset_of(table).to_table(columns=[*_KEY], filter=where)
    new = rows
    if known.num_rows:
        numbered = _select_key(rows).append_column("number", pa.array(range(rows.num_rows)))
        new = rows.take(numbered.join(_select_key(known), [*_KEY], join_type="left anti")["number"])
    if new.num_rows:
        last = table.transaction_version(_APPLICATION) or 0
        append_rows(paths, SIGHTINGS, new, Transaction(_APPLICATION, last + 1), table)
    return int(new.num_rows)


def _select_key(rows: pa.Table) -> pa.Table:
    """The key columns, an unknown peer as an empty text: null equals nothing in a join."""
    key = rows.select([*_KEY])
    return key.set_column(_KEY.index("node"), "node", pc.fill_null(key["node"], ""))


def _decompress(stream: Any) -> Any:
    """A stream that decompresses, if the bytes begin as those of gzip or zstd do."""
    begin = stream.peek(4)[:4]
    if begin[:2] == b"\x1f\x8b":
        return gzip.GzipFile(fileobj=stream)
    if begin == b"\x28\xb5\x2f\xfd":
        return zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True, closefd=False)
    return stream


def _read_lines(file: IO[bytes], counts: LogCounts) -> Iterator[bytes | None]:
    """The whole lines of a log; ``None`` when it is time to write, because standard input may go on for ever. A last
    line without its end is still being written and is left for the next time. Lines longer than
    :data:`MAX_LINE_BYTES` are skipped."""
    stream, rest, skipping, since = _decompress(file), b"", False, time.monotonic()
    while chunk := stream.read1(CHUNK_BYTES):
        lines = (rest + chunk).split(b"\n")
        rest = lines.pop()
        counts.lines += len(lines)
        for line in lines:
            if skipping or len(line) > MAX_LINE_BYTES:
                counts.too_long += 1
                skipping = False
            else:
                yield line
        if len(rest) > MAX_LINE_BYTES:
            rest, skipping = b"", True
        if stream is sys.stdin.buffer:
            # Its own buffer is empty now, since a chunk is larger: select() sees all that is left.
            silent = not select.select([stream], [], [], WAIT_S)[0]
            if silent or time.monotonic() - since > WAIT_S:
                yield None
                since = time.monotonic()
