"""Looks up the payloads of delivered messages by the Kafka coordinates of their records.

A task follows the tables' logs (:mod:`~reliable_channel.lake.follow`) and opens only the files whose statistics allow
these coordinates.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake.follow import DataFile, DeltaFollower, PerQuery
from reliable_channel.lake.tables import BY_NAME, REASSEMBLED_MESSAGES, RECORD_KEY, SDS_MESSAGES, Table
from reliable_channel.pipeline.delta import running

MARGIN_US = 10 * 60 * 1_000_000
"""How long (µs of event time) before the requested time files are followed, since the next request may be earlier."""

_PAYLOAD = {SDS_MESSAGES.name: "content", REASSEMBLED_MESSAGES.name: "payload"}


class Wanted(NamedTuple):
    """A requested payload: its Kafka record, and the hash of the message."""

    topic: str
    partition: int
    offset: int
    hash: bytes


class Payloads:
    """Looks up payloads in one table. Encrypted rows have none: their content is the ciphertext."""

    def __init__(self, paths: PathSettings, name: str, query_id: str = "") -> None:
        """``query_id``: the calling query; a rebuild has new queries and new tables at the same path."""
        self._columns = [
            *RECORD_KEY,
            "entire_message_hash",
            _PAYLOAD[name],
            *(["encrypted"] if name == SDS_MESSAGES.name else []),
        ]
        self._table = DeltaFollower(paths, BY_NAME[name], "event_time", also=("kafka_partition", "kafka_offset"))

    def find(self, wanted: Collection[Wanted], since_us: int) -> dict[Wanted, bytes]:
        """The payloads that are found of records from ``since_us`` (event time, µs) on."""
        by_place: dict[Wanted, bytes] = {}
        offsets: dict[int, list[int]] = {}
        for one in wanted:
            offsets.setdefault(one.partition, []).append(one.offset)
        for file in self._table.files(since_us - MARGIN_US):
            here = sorted(
                offset
                for partition, some in offsets.items()
                if _may_hold(file, 0, partition)
                for offset in some
                if _may_hold(file, 1, offset)
            )
            if not here:
                continue
            rows = self._table.read(file, self._columns, pc.field("kafka_offset").isin(here))
            columns = (rows[name].to_pylist() for name in self._columns)
            for topic, partition, offset, hash_, payload, *encrypted in zip(*columns, strict=True):
                at = Wanted(topic, partition, offset, hash_)
                if at in wanted and payload is not None and not any(encrypted):
                    by_place[at] = payload
        return by_place


def _may_hold(file: DataFile, number: int, value: int) -> bool:
    least, largest = file.also[number]
    return (least is None or least <= value) and (largest is None or value <= largest)


_payloads = PerQuery(Payloads)


def payloads_of(paths: PathSettings, table: Table) -> Payloads:
    """The look-up for ``table`` that this process caches for the running query."""
    query_id, _ = running() or ("", 0)
    return _payloads.get(paths, table.name, query_id)
