"""The example of every column is a value of its type and unit, and the unit stands in Delta's comment."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest

from reliable_channel.lake.tables import TABLES, Column, Table
from scripts.reference.tables import format_example, markdown

each_table = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
UNITS = {"ms", "ms since 1970", "ns since 1970", "bytes", "32 bytes", ""}
BITS = {"INT": 31, "BIGINT": 63}


def parsed(text: str, kind: str) -> Any:
    """The value that an example shows; fails when it is none of its Spark type."""
    if kind == "STRING":
        return text
    if kind == "BINARY":
        assert text.startswith("0x")
        return bytes.fromhex(text[2:])
    if kind == "TIMESTAMP":
        time = datetime.fromisoformat(text)
        assert time.tzinfo == UTC
        return time
    value = json.loads(text)
    if kind.startswith("ARRAY<"):
        assert isinstance(value, list)
        return [None if item is None else element(item, kind[6:-1]) for item in value]
    if kind == "DOUBLE":
        assert isinstance(value, float)
        return value
    if kind == "BOOLEAN":
        assert isinstance(value, bool)
        return value
    assert isinstance(value, int)
    assert -(2 ** BITS[kind]) <= value < 2 ** BITS[kind]
    return value


def element(item: Any, kind: str) -> Any:
    if kind.startswith("STRUCT<"):
        fields = dict(re.findall(r"(\w+): (\w+)", kind))
        assert set(item) == set(fields)
        return {name: parsed(item[name], of) for name, of in fields.items()}
    return parsed(item if kind == "STRING" else json.dumps(item), kind)


@each_table
def test_the_examples_fit_type_and_unit(table: Table) -> None:
    for column in table.columns:
        assert column.example, column.name
        value = parsed(column.example, column.type)
        if column.unit == "32 bytes":
            assert len(value) == 32, column.name
        elif column.unit == "ms since 1970":
            assert 2020 < datetime.fromtimestamp(value / 1e3, UTC).year < 2100, column.name
        elif column.unit == "ns since 1970":
            assert 2020 < datetime.fromtimestamp(value / 1e9, UTC).year < 2100, column.name


@each_table
def test_names_that_promise_a_unit_have_one(table: Table) -> None:
    for column in table.columns:
        assert column.unit in UNITS
        for suffix, unit in (("_ms", "ms"), ("_ns", "ns"), ("_bytes", "bytes"), ("_hash", "32 bytes")):
            if column.name.endswith(suffix):
                assert column.unit.startswith(unit), column.name
        assert column.comment == column.meaning + (f" ({column.unit})" if column.unit else "")


def test_no_cell_breaks_the_tables_of_the_reference() -> None:
    rows = [line for line in markdown().splitlines() if line.startswith("| ") and "|---" not in line]
    assert len(rows) > sum(len(table.columns) for table in TABLES)
    assert {line.count(" |") for line in rows} == {3, 5}


def test_ids_are_shortened_and_nothing_else() -> None:
    assert format_example(Column("a", "BINARY", "", example="0x" + "ab" * 32)) == "0xabababab…abab"
    assert (
        format_example(Column("a", "STRING", "", example="/reliable-channel/1/chat/proto"))
        == "/reliable-channel/1/chat/proto"
    )
