"""Looks up the payloads of delivered messages by the Kafka coordinates of their records.

A task reads only the files whose statistics allow these coordinates. It does not go by time: a requeued record keeps
its old event time, and its message is delivered now.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from operator import or_
from typing import NamedTuple

import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake.follow import list_files_of_records, read_files
from reliable_channel.lake.read import open_table
from reliable_channel.lake.tables import REASSEMBLED_MESSAGES, RECORD_KEY, SDS_MESSAGES, Table

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
    partition, offset = pc.field("kafka_partition"), pc.field("kafka_offset")
    records = reduce(or_, [(partition == number) & offset.isin(some) for number, some in offsets.items()])
    payloads: dict[Wanted, bytes] = {}
    rows = read_files(paths, table, files, columns, records)
    for topic, number, at, hash_, payload, *encrypted in zip(*(rows[n].to_pylist() for n in columns), strict=True):
        record = Wanted(topic, number, at, hash_)
        if record in wanted and payload is not None and not any(encrypted):
            payloads[record] = payload
    return payloads
