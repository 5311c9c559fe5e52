"""Creating the Delta tables of :mod:`reliable_channel.pipeline.tables`, with comments, clustering and properties."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from delta.tables import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructField, StructType

from reliable_channel.config import PathSettings
from reliable_channel.errors import ConfigurationError, EnvironmentFault
from reliable_channel.pipeline.storage.io import open_table
from reliable_channel.pipeline.tables import INDEXED_COLUMNS, Table

_PROPERTIES = {
    # Plain readers refuse deletion vectors (design.md *Reading for people does not start Spark*).
    "delta.enableDeletionVectors": "false",
    # Never by Delta itself, which takes seconds for one and makes the commit wait (storage/io.py writes them).
    "delta.checkpointInterval": "1000000",
    "delta.dataSkippingNumIndexedCols": str(INDEXED_COLUMNS),
}


_DELTA_TYPES = {
    "STRING": "string",
    "BINARY": "binary",
    "INT": "integer",
    "BIGINT": "long",
    "DOUBLE": "double",
    "BOOLEAN": "boolean",
    "TIMESTAMP": "timestamp",
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


def refuse_another_version(name: str, found: Mapping[str, str], table: Table) -> None:
    """Compare the columns of an existing table (name → Delta's own type) with its definition.

    Raises ``ConfigurationError`` when some are missing or of another type: an append would fail in the middle of a
    micro-batch. Columns that are over do no harm."""
    missing = [column.name for column in table.columns if column.name not in found]
    other = [
        c.name for c in table.columns if c.name in found and found[c.name] != _DELTA_TYPES.get(c.type, found[c.name])
    ]
    if missing or other:
        differs = [f"{', '.join(missing)} missing"] if missing else []
        differs += [f"{', '.join(other)} of another type"] if other else []
        raise ConfigurationError(
            f"The table {name} was made by another version of this program: {' and '.join(differs)}.",
            "Run `reliable-channel rebuild`, which derives the tables again.",
        )


def create_tables(spark: SparkSession, paths: PathSettings, tables: Iterable[Table]) -> None:
    """Create those of ``tables`` that do not exist yet; existing ones are left as they are.

    Raises ``ConfigurationError`` when an existing one was made by another version and cannot be appended to, and
    ``EnvironmentFault`` when one cannot be made."""
    for table in tables:
        location = paths.table(table.name)
        if DeltaTable.isDeltaTable(spark, location):
            fields = open_table(paths, table).schema().fields
            refuse_another_version(table.name, {f.name: getattr(f.type, "type", "") for f in fields}, table)
            continue
        builder = DeltaTable.createIfNotExists(spark).location(location).comment(table.comment)
        builder = builder.addColumns(schema_of(table))
        if table.cluster_by:
            builder = builder.clusterBy(*table.cluster_by)
        if table.partition_by:
            builder = builder.partitionedBy(*table.partition_by)
        for key, value in _PROPERTIES.items():
            builder = builder.property(key, value)
        try:
            builder.execute()
        except AnalysisException as error:
            if "DELTA_TABLE_NOT_FOUND" not in str(error):
                raise
            # What Delta says when its first commit could not be written and there is no table after all.
            raise EnvironmentFault(
                f"The table {table.name} could not be created under {paths.data_dir}.",
                "See that the disk is not full and that the place can be written to.",
            ) from error
