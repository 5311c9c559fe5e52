"""The sample tables hold one of everything that readers of tables must cope with."""

from __future__ import annotations

from pathlib import Path

import deltalake
import pytest

from reliable_channel.lake.read import dataset_of, rows_of
from reliable_channel.lake.tables import TABLES
from reliable_channel.pipeline.verdict.rules import Cause, Verdict
from tests.support.sample_values import HOSTILE


def values(place: Path, table: str, *columns: str) -> set[object]:
    rows = rows_of(deltalake.DeltaTable(str(place / table)), columns=list(columns))
    return {tuple(row[c] for c in columns) if len(columns) > 1 else row[columns[0]] for row in rows}


def test_every_table_is_there_with_the_comments_of_its_columns(sample_tables: Path) -> None:
    for table in TABLES:
        opened = deltalake.DeltaTable(str(sample_tables / table.name))
        comments = {field.name: field.metadata["comment"] for field in opened.schema().fields}
        assert comments == {column.name: column.comment for column in table.columns}
        assert opened.metadata().description == table.comment
        assert dataset_of(opened).count_rows() > 0 or table.name in ("alerts", "sent_rows")


@pytest.mark.parametrize(
    ("table", "column", "expected"),
    [
        ("delivery_status", "verdict", set(Verdict)),
        ("delivery_status", "cause", set(Cause) - {Cause.NOT_FOLLOWED, Cause.CLAIMED_BY_ONE, Cause.REFUSED} | {None}),
        ("acks", "evidence", {"causal_history", "implied", "filter"}),
        ("acks", "certainty", {"certain", "implied", "probable"}),
        ("lost_dependencies", "status", {"lost", "before_observation", "recovered"}),
        ("store_presence", "outcome", {"present", "absent", "error"}),
        ("deliveries", "segment_kind", {"bare", "data", "parity", None}),
        ("deliveries", "repaired_by", {"parity", None}),
        ("quarantine", "stage", {"record", "envelope", "decryption", "sds", "segment"}),
        ("quarantine", "disposition", {"dropped", "kept", "requeued"}),
        ("source_gaps", "cause", {"offset_jump", "bridge_restart"}),
        ("sender_events", "event", {"queued", "sent", "rate_limited", "failed", "dropped"}),
    ],
)
def test_it_holds_every_kind(sample_tables: Path, table: str, column: str, expected: set[object]) -> None:
    assert values(sample_tables, table, column) == expected


def test_keys_are_unique(sample_tables: Path) -> None:
    for table in TABLES:
        rows = dataset_of(deltalake.DeltaTable(str(sample_tables / table.name))).to_table(columns=list(table.key))
        keys = [tuple(row.values()) for row in rows.to_pylist()]
        assert len(keys) == len(set(keys)), table.name


def test_hostile_strings_stand_in_every_name_a_stranger_chooses(sample_tables: Path) -> None:
    for table, column in (
        ("delivery_status", "channel_id"),
        ("acks", "acknowledged_by"),
        ("sds_messages", "sender_id"),
    ):
        assert set(HOSTILE) <= values(sample_tables, table, column)
    assert {f"/{text}" for text in HOSTILE} <= values(sample_tables, "envelopes", "content_topic")
