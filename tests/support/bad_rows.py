"""Rows that no job of ours writes, for every table: what a foreign writer, an older version or a fault may leave.

Three for each table: null wherever the table allows it, the least of every type, and the most of it. Texts have no half
surrogate pairs, since Arrow's cannot hold them; bytes decode to nothing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import CLOCK, EPOCH, HISTORY_TYPE, TABLES, Table

EMPTY: dict[str, Any] = {
    "STRING": "",
    "BINARY": b"",
    "INT": 0,
    "BIGINT": 0,
    "DOUBLE": 0.0,
    "BOOLEAN": False,
    "TIMESTAMP": EPOCH,
    "ARRAY<INT>": [],
    "ARRAY<STRING>": [],
    HISTORY_TYPE: [],
}
LEAST: dict[str, Any] = {
    **EMPTY,
    "INT": -(2**31),
    "BIGINT": -(2**63),
    "DOUBLE": float("-inf"),
    "TIMESTAMP": dt.datetime(1, 1, 1, tzinfo=dt.UTC),
    "ARRAY<STRING>": [None],
    HISTORY_TYPE: [None],
}
MOST: dict[str, Any] = {
    "STRING": "\0\ufffd" + "x" * 5_000,
    "BINARY": b"\xff" * 33,
    "INT": 2**31 - 1,
    "BIGINT": 2**63 - 1,
    "DOUBLE": float("nan"),
    "BOOLEAN": True,
    "TIMESTAMP": dt.datetime(9999, 12, 31, 23, 59, 59, tzinfo=dt.UTC),
    "ARRAY<INT>": [None, -1, 2**31 - 1],
    "ARRAY<STRING>": [None, "", "\0"],
    HISTORY_TYPE: [{"sds_id": None, "retrieval_hint": b"x", "sender_id": None}],
}


BEYOND = ({"TIMESTAMP": -(2**60)}, {"TIMESTAMP": 2**60})
"""Times (µs) that neither Python nor pandas has."""


def bad_rows(table: Table, beyond: bool = False) -> list[dict[str, Any]]:
    """The rows for a table; with times :data:`BEYOND` if asked for. What ``clock`` says is what time it is,
    for every reader: there the time stays."""
    nulls = {column.name: None if column.nullable else EMPTY[column.type] for column in table.columns}
    least, most = (LEAST | BEYOND[0], MOST | BEYOND[1]) if beyond else (LEAST, MOST)
    rows = [nulls, *({c.name: values[c.type] for c in table.columns} for values in (least, most))]
    if table is CLOCK:
        rows = [row | {"event_time": EPOCH, "recorded_at": EPOCH} for row in rows]
    return rows


def spoil(place: Path, tables: Iterable[Table] = TABLES, *, beyond: bool = False) -> None:
    """Append them to every table under ``place``, or to some."""
    for table in tables:
        rows = pa.Table.from_pylist(bad_rows(table, beyond), schema=arrow_schema(table))
        write_deltalake(str(place / table.name), rows, mode="append")
