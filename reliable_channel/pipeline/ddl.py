"""Creating the Delta tables of :mod:`reliable_channel.pipeline.tables`, with comments, clustering and properties."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from delta.tables import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from reliable_channel.config import PathSettings
from reliable_channel.pipeline.tables import Table

_PROPERTIES = {
    # Plain readers refuse deletion vectors (design.md *Reading for people does not start Spark*).
    "delta.enableDeletionVectors": "false",
    "delta.checkpointInterval": "50",
    # Statistics stop before the long binary and array columns: they cost time and skip nothing.
    "delta.dataSkippingNumIndexedCols": "14",
}


def schema_of(table: Table) -> StructType:
    """The Spark schema of a table, with comments and nullability."""
    plain = cast(StructType, StructType.fromDDL(table.ddl()))
    return StructType(
        [
            StructField(field.name, field.dataType, column.nullable, {"comment": column.comment})
            for field, column in zip(plain.fields, table.columns, strict=True)
        ]
    )


def create_tables(spark: SparkSession, paths: PathSettings, tables: Iterable[Table]) -> None:
    """Create those of ``tables`` that do not exist yet; existing ones are left as they are."""
    for table in tables:
        location = paths.table(table.name)
        if DeltaTable.isDeltaTable(spark, location):
            continue
        builder = DeltaTable.createIfNotExists(spark).location(location).comment(table.comment)
        builder = builder.addColumns(schema_of(table))
        if table.cluster_by:
            builder = builder.clusterBy(*table.cluster_by)
        if table.partition_by:
            builder = builder.partitionedBy(*table.partition_by)
        for key, value in _PROPERTIES.items():
            builder = builder.property(key, value)
        builder.execute()
