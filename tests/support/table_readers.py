"""Reads a table with every reader of the documents, and compares what they count with what is right.

polars is no dependency of the project; where it is not installed, the others are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import DeltaTable, QueryBuilder

from reliable_channel.lake.read import as_table, in_our_time, quote

polars: Any = import_module("polars") if find_spec("polars") else None

Counts = dict[str, int]
"""How many rows each reader found."""


@dataclass(frozen=True)
class Readers:
    """Every reader of the documents that needs no Spark, over one table; each counts rows."""

    place: str

    @cached_property
    def arrow(self) -> ds.Dataset:
        """What pandas and DuckDB read: Arrow's files through delta-rs."""
        files = pafs.SubTreeFileSystem(self.place, pafs.LocalFileSystem())
        return DeltaTable(self.place).to_pyarrow_dataset(filesystem=files)

    @cached_property
    def duckdb(self) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        return connection.register("t", self.arrow)

    @cached_property
    def delta_rs(self) -> QueryBuilder:
        return QueryBuilder().register("t", DeltaTable(self.place))

    @cached_property
    def polars(self) -> Any:
        return polars and polars.scan_delta(self.place)

    def counts_of(self, name: str, value: pa.Scalar) -> Counts:
        """The rows in which a column has a value."""
        counts = {
            "arrow": self.arrow.to_table(filter=pc.field(name) == value).num_rows,
            "duckdb": self._in_duckdb(f'"{name}" = ?', value.as_py()),
        }
        return counts | self.counts_of_others(name, value)

    def counts_of_others(self, name: str, value: pa.Scalar) -> Counts:
        """As :meth:`counts_of`, by the readers that do not use Arrow's datasets."""
        counts = {}
        if polars:
            literal = polars.lit(value.as_py(), dtype=self.polars.collect_schema()[name])
            counts["polars"] = self.polars.filter(polars.col(name) == literal).collect().height
        if isinstance(value.as_py(), str) and "\x00" not in value.as_py():
            counts["delta-rs"] = self._in_delta_rs(f"{name} = {quote(value.as_py())}")
        return counts

    def counts_of_null(self, name: str) -> Counts:
        """The rows in which a column is null."""
        counts = {
            "arrow": self.arrow.to_table(filter=pc.field(name).is_null()).num_rows,
            "duckdb": self._in_duckdb(f'"{name}" IS NULL'),
            "delta-rs": self._in_delta_rs(f"{name} IS NULL"),
        }
        if polars:
            counts["polars"] = self.polars.filter(polars.col(name).is_null()).collect().height
        return counts

    def counts(self) -> Counts:
        """All rows."""
        counts = {
            "arrow": self.arrow.to_table().num_rows,
            "pandas": len(in_our_time(self.arrow.to_table()).to_pandas()),
            "duckdb": self._in_duckdb("true"),
            "delta-rs": self._in_delta_rs("true"),
        }
        if polars:
            counts["polars"] = self.polars.collect().height
        return counts

    def _in_duckdb(self, where: str, *values: Any) -> int:
        row = self.duckdb.execute(f"SELECT count(*) FROM t WHERE {where}", values).fetchone()  # noqa: S608
        assert row is not None
        return int(row[0])

    def _in_delta_rs(self, where: str) -> int:
        return int(as_table(self.delta_rs.execute(f"SELECT 1 AS one FROM t WHERE {where}")).num_rows)  # noqa: S608


def matches(values: pa.Table, name: str, value: Any) -> int:
    return int(values.filter(pc.equal(values[name], pa.scalar(value, values.schema.field(name).type))).num_rows)


def differences(everything: pa.Table, counts_of: Callable[..., Counts]) -> list[Any]:
    """What readers count wrongly: column, value, counts, the right count."""
    wrong = []
    for name in everything.column_names:
        for value in {v for v in everything[name].to_pylist() if v is not None and v == v}:
            scalar = pa.scalar(value, everything.schema.field(name).type)
            counts, right = counts_of(name, scalar), matches(everything, name, value)
            wrong += [(name, value, counts, right)] if set(counts.values()) - {right} else []
    return wrong
