"""The tables of :mod:`reliable_channel.pipeline.tables` as Arrow schemas, and how they are made without Spark."""

from __future__ import annotations

from os import PathLike

import pyarrow as pa
from deltalake import DeltaTable

from reliable_channel.pipeline.tables import HISTORY_TYPE, Table

ARROW_TYPES: dict[str, pa.DataType] = {
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<INT>": pa.list_(pa.int32()),
    "ARRAY<STRING>": pa.list_(pa.string()),
    HISTORY_TYPE: pa.list_(
        pa.struct([("sds_id", pa.string()), ("retrieval_hint", pa.binary()), ("sender_id", pa.string())])
    ),
}
"""Spark SQL type → Arrow type, for every type that a table uses."""


def arrow_schema(table: Table) -> pa.Schema:
    """The columns of a table with their types, nullability and comments."""
    return pa.schema([pa.field(c.name, ARROW_TYPES[c.type], c.nullable, {"comment": c.comment}) for c in table.columns])


def create_table(place: str | PathLike[str], table: Table) -> None:
    """Create an empty Delta table there without Spark, and so without clustering; one that exists is left as it is."""
    partitions = list(table.partition_by) or None
    schema = arrow_schema(table)
    DeltaTable.create(str(place), schema, mode="ignore", description=table.comment, partition_by=partitions)
