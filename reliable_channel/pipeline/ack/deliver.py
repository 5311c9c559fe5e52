"""Creates the rows of ``delivered_messages`` from the rows of ``deliveries``, in the task that writes both.

A delivery names the Kafka record that holds its payload: a bare payload is in ``sds_messages``, a rebuilt one in
``reassembled_messages``. The task reads it from the few files whose statistics allow that record; there is no join. It
does not go by time: a requeued record keeps its old event time, and its message is delivered now.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from functools import reduce
from operator import or_
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake.follow import list_files_of_records, read_payloads
from reliable_channel.lake.read import open_table
from reliable_channel.lake.tables import DELIVERED_MESSAGES, REASSEMBLED_MESSAGES, RECORD_KEY, SDS_MESSAGES, Table

TABLES_READ = (SDS_MESSAGES, REASSEMBLED_MESSAGES)

CHUNK_BYTES = 16 * 1024 * 1024
"""The approximate number of payload bytes in memory at a time."""

_RENAMED = {"causal_lamport": "first_lamport_timestamp", "causal_sds_id": "first_sds_id"}


def make_messages(deliveries: pa.Table, paths: PathSettings) -> Iterator[tuple[Table, pa.Table]]:
    """The rows of ``delivered_messages`` for rows of ``deliveries``, in chunks of bounded size: the application
    messages among them, with their payloads."""
    now_us = time.time_ns() // 1_000
    messages = deliveries.filter(pc.equal(deliveries["row_kind"], "message"))
    for batch in messages.combine_chunks().to_batches():
        for chunk in chunks(batch, CHUNK_BYTES):
            yield DELIVERED_MESSAGES, add_payloads(chunk, paths, now_us)


def chunks(deliveries: pa.RecordBatch, size: int) -> Iterator[pa.RecordBatch]:
    """Split the rows, in order, into chunks with about ``size`` bytes of payload; each has at least one row."""
    start = total = 0
    for number, payload_bytes in enumerate(deliveries.column("payload_bytes").to_pylist()):
        total += payload_bytes or 0
        if total >= size:
            yield deliveries.slice(start, number + 1 - start)
            start, total = number + 1, 0
    if start < deliveries.num_rows:
        yield deliveries.slice(start)


def add_payloads(deliveries: pa.RecordBatch, paths: PathSettings, written_us: int) -> pa.Table:
    """Deliveries with their payloads, as rows of ``delivered_messages``. A payload that is not found is null.
    ``written_us``: when they are written, Unix µs."""
    columns = (*RECORD_KEY, "entire_message_hash")
    keys = [Wanted(*key) for key in zip(*(deliveries.column(name).to_pylist() for name in columns), strict=True)]
    # The payload of a delivery without coordinates is unknown. A segment kind marks a bare payload, which is not
    # rebuilt.
    bare = deliveries.column("segment_kind").is_valid().to_pylist()
    payloads: dict[Wanted, bytes] = {}
    for table, wanted_is_bare in ((SDS_MESSAGES, True), (REASSEMBLED_MESSAGES, False)):
        wanted = {p for p, is_bare in zip(keys, bare, strict=True) if is_bare == wanted_is_bare and None not in p}
        if wanted:
            payloads |= find_payloads(paths, table, wanted)
    special = {
        "payload": pa.array([payloads.get(key) for key in keys], pa.binary()),
        "written_at": pa.repeat(pa.scalar(written_us, pa.timestamp("us", tz="UTC")), deliveries.num_rows),
        "ephemeral": pc.equal(deliveries.column("sds_kind"), "ephemeral"),
    }
    names = DELIVERED_MESSAGES.names()
    arrays = [special[n] if n in special else deliveries.column(_RENAMED.get(n, n)) for n in names]
    return pa.Table.from_arrays(arrays, [*names])


_PAYLOAD = {SDS_MESSAGES.name: "content", REASSEMBLED_MESSAGES.name: "payload"}


class Wanted(NamedTuple):
    """A requested payload: its Kafka record, and the hash of the message."""

    topic: str
    partition: int
    offset: int
    hash: bytes


def find_payloads(paths: PathSettings, table: Table, wanted: Collection[Wanted]) -> dict[Wanted, bytes]:
    """The payloads that one table has. Encrypted rows have none: their content is the ciphertext."""
    columns = [*RECORD_KEY, "entire_message_hash", _PAYLOAD[table.name]]
    if table is SDS_MESSAGES:
        columns.append("encrypted")
    offsets: dict[int, list[int]] = {}
    for one in sorted(wanted):
        offsets.setdefault(one.partition, []).append(one.offset)
    files = list_files_of_records(open_table(paths, table), offsets)
    keys = ("kafka_partition", "kafka_offset")
    partition, offset = map(pc.field, keys)
    records = reduce(or_, [(partition == number) & offset.isin(some) for number, some in offsets.items()])
    payloads: dict[Wanted, bytes] = {}
    rows = read_payloads(paths, table, files, columns, keys, records)
    for topic, number, at, hash_, payload, *encrypted in zip(*(rows[n].to_pylist() for n in columns), strict=True):
        record = Wanted(topic, number, at, hash_)
        if record in wanted and payload is not None and not any(encrypted):
            payloads[record] = payload
    return payloads
