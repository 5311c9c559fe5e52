"""Tables that demand more of their writers than the jobs do: refused by name."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, TableFeatures

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings, load
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.commit import replace_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import dataset_of, open_table, public_dataset
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ACKS, ENVELOPES, SDS_MESSAGES, SOURCE_GAPS, TABLES, Column, Table
from reliable_channel.pipeline.maintenance.rebuild import find_tables
from tests.support import error_page
from tests.support.bad_rows import bad_rows


@pytest.fixture
def empty(tmp_path: Path) -> PathSettings:
    """Where no table is yet."""
    return load("local").with_run_dir(tmp_path).paths


@pytest.fixture
def paths(empty: PathSettings) -> PathSettings:
    create_tables(empty, (SDS_MESSAGES,))
    return empty


def changed(paths: PathSettings, *actions: dict[str, Any]) -> None:
    """The table's log with other actions of the kinds given, as another engine could have written it."""
    log = Path(paths.table(SDS_MESSAGES.name)) / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    new = {kind: action for each in actions for kind, action in each.items()}
    lines = [{kind: {**line[kind], **new.get(kind, {})} for kind in line} for line in lines]
    log.write_text("\n".join(json.dumps(line) for line in lines))


def metadata(paths: PathSettings) -> dict[str, Any]:
    log = Path(paths.table(SDS_MESSAGES.name)) / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    return next(dict(action["metaData"]) for action in actions if "metaData" in action)


def with_property(paths: PathSettings, **configuration: str) -> None:
    known = metadata(paths)["configuration"]
    changed(paths, {"metaData": {"configuration": {**known, **configuration}}})


def test_every_table_that_this_version_creates_is_one_that_it_writes(empty: PathSettings) -> None:
    create_tables(empty, TABLES)
    create_tables(empty, TABLES)
    for table in TABLES:
        created = DeltaTable(empty.table(table.name))
        assert created.protocol().writer_features is None
        assert [field.metadata["comment"] for field in created.schema().fields] == [c.comment for c in table.columns]
        assert [field.nullable for field in created.schema().fields] == [c.nullable for c in table.columns]


def test_a_table_with_comments_of_another_version_is_written_and_keeps_them(empty: PathSettings) -> None:
    before = {
        table: replace(table, comment="before", columns=tuple(replace(c, meaning="before") for c in table.columns))
        for table in TABLES
    }
    create_tables(empty, before.values())
    create_tables(empty, TABLES)
    for table, earlier in before.items():
        rows = as_arrow(bad_rows(table), table)
        append_rows(empty, table, rows)
        opened = open_table(empty, table)
        assert dataset_of(opened).count_rows() == rows.num_rows
        assert [field.metadata["comment"] for field in opened.schema().fields] == [c.comment for c in earlier.columns]


def newer(table: Table, nullable: bool = True) -> Table:
    """The table as a version defines it that has a column more."""
    return replace(table, columns=(*table.columns, Column("era", "STRING", "of a newer version", nullable)))


def test_rows_are_appended_to_tables_that_have_a_column_more(empty: PathSettings) -> None:
    create_tables(empty, map(newer, TABLES))
    create_tables(empty, TABLES)
    for table in TABLES:
        rows = as_arrow(bad_rows(table), table)
        append_rows(empty, table, rows)
        opened = open_table(empty, table)
        assert dataset_of(opened).to_table()["era"].null_count == rows.num_rows
    replace_rows(opened := open_table(empty, SOURCE_GAPS), "kafka_partition < 0", as_arrow([], SOURCE_GAPS))
    assert "era" in dataset_of(opened).schema.names


def test_a_column_more_that_may_not_be_null_is_refused(empty: PathSettings) -> None:
    create_tables(empty, [newer(SDS_MESSAGES, nullable=False)])
    with pytest.raises(ConfigurationError, match=r"another version .*: era unknown to this one and never null\. Run"):
        create_tables(empty, (SDS_MESSAGES,))


def test_a_column_less_is_refused(empty: PathSettings) -> None:
    create_tables(empty, [replace(SDS_MESSAGES, columns=SDS_MESSAGES.columns[:-1])])
    missing = SDS_MESSAGES.columns[-1].name
    with pytest.raises(ConfigurationError, match=rf"another version .*: {missing} missing\. Run"):
        create_tables(empty, (SDS_MESSAGES,))


def test_columns_of_another_type_are_refused_lists_too(empty: PathSettings) -> None:
    as_text = {"kafka_offset", "causal_history"}
    columns = [replace(c, type="STRING") if c.name in as_text else c for c in SDS_MESSAGES.columns]
    create_tables(empty, [replace(SDS_MESSAGES, columns=tuple(columns))])
    with pytest.raises(ConfigurationError, match=r": kafka_offset, causal_history of another type\. Run"):
        create_tables(empty, (SDS_MESSAGES,))


def test_a_table_whose_log_is_gone_is_no_empty_table(paths: PathSettings) -> None:
    """A new one in its place would hide its rows, and the next vacuum would remove their files."""
    append_rows(paths, SDS_MESSAGES, as_arrow(bad_rows(SDS_MESSAGES), SDS_MESSAGES))
    log = Path(paths.table(SDS_MESSAGES.name)) / "_delta_log"
    shutil.rmtree(log)
    for _ in ("without the directory", "with an empty one"):
        for access in (
            lambda: create_tables(paths, (SDS_MESSAGES,)),
            lambda: TableSnapshot(paths).select("FROM sds_messages"),
        ):
            with pytest.raises(
                EnvironmentFault, match=r"sds_messages cannot be read: it has files and no log\. .*rebuild"
            ):
                access()
        log.mkdir(exist_ok=True)


def test_a_shallow_clone_is_named_and_not_taken_for_damage(paths: PathSettings, tmp_path: Path) -> None:
    append_rows(paths, SDS_MESSAGES, as_arrow(bad_rows(SDS_MESSAGES), SDS_MESSAGES))
    clone = PathSettings(data_dir=str(tmp_path / "clone"))
    original, place = Path(paths.table(SDS_MESSAGES.name)), Path(clone.table(SDS_MESSAGES.name))
    shutil.copytree(original / "_delta_log", place / "_delta_log")
    commit = place / "_delta_log" / f"{1:020d}.json"
    commit.write_text(commit.read_text().replace('"path":"', f'"path":"file:{original}/'))
    with pytest.raises(EnvironmentFault, match=r"sds_messages cannot be read: .* It is a shallow clone"):
        TableSnapshot(clone).select("FROM sds_messages")


def test_a_rebuild_goes_by_what_can_be_read(paths: PathSettings) -> None:
    create_tables(paths, (ENVELOPES, ACKS))
    for damaged in (SDS_MESSAGES, ENVELOPES):
        (Path(paths.table(damaged.name)) / "_delta_log" / f"{1:020d}.json").write_text("{")
        said = list[str]()
        if damaged is ENVELOPES:
            with pytest.raises(EnvironmentFault, match="envelopes cannot be read"):
                find_tables(paths, said.append)
        else:
            assert find_tables(paths, said.append) == {ENVELOPES: True, SDS_MESSAGES: False, ACKS: True}
            (line,) = said
            assert line.startswith("The Delta table sds_messages cannot be read: ")
            assert line.endswith(". It stays with the old tables.")


def test_a_protocol_that_is_not_known_yet_is_no_damage(paths: PathSettings) -> None:
    changed(paths, {"protocol": {"minReaderVersion": 4, "minWriterVersion": 9}})
    with pytest.raises(EnvironmentFault, match=r"cannot be read: .*reader version 4\. Upgrade this package"):
        create_tables(paths, (SDS_MESSAGES,))


def test_a_check_constraint_is_refused_by_name(paths: PathSettings) -> None:
    DeltaTable(paths.table(SDS_MESSAGES.name)).alter.add_constraint({"no_ticks": "sds_kind <> 'tick'"})
    with pytest.raises(
        ConfigurationError, match=r"sds_messages has the constraint no_ticks \(CHECK .*rebuild"
    ) as fault:
        create_tables(paths, (SDS_MESSAGES,))
    assert error_page.pattern_of("A table that another engine altered").fullmatch(str(fault.value))


@pytest.mark.parametrize(
    ("key", "value", "name"),
    [
        ("delta.columnMapping.mode", "name", "column mapping"),
        ("delta.enableDeletionVectors", "true", "deletion vectors"),
        ("delta.appendOnly", "true", "append-only"),
        ("delta.enableChangeDataFeed", "TRUE", "change data feed"),
    ],
)
def test_a_property_that_changes_what_writers_owe_is_refused_by_name(
    paths: PathSettings, key: str, value: str, name: str
) -> None:
    with_property(paths, **{key: value})
    with pytest.raises(ConfigurationError, match=f"sds_messages has {name}, which"):
        create_tables(paths, (SDS_MESSAGES,))


def test_statistics_that_readers_misread_are_refused(paths: PathSettings) -> None:
    """Of a flag or bytes: maintenance would write them, and Arrow and DuckDB then skip files that have the rows."""
    indexed = str(metadata(paths)["configuration"]["delta.dataSkippingStatsColumns"])
    with_property(paths, **{"delta.dataSkippingStatsColumns": "event_time, `channel_id`"})
    create_tables(paths, (SDS_MESSAGES,))
    with_property(paths, **{"delta.dataSkippingStatsColumns": f"{indexed}, `content`"})
    with pytest.raises(ConfigurationError, match=r"sds_messages has statistics of content, which .*rebuild"):
        create_tables(paths, (SDS_MESSAGES,))
    known = {k: v for k, v in metadata(paths)["configuration"].items() if k != "delta.dataSkippingStatsColumns"}
    changed(paths, {"metaData": {"configuration": known}})
    with pytest.raises(ConfigurationError, match="sds_messages has statistics of all columns, which"):
        create_tables(paths, (SDS_MESSAGES,))


def test_a_generated_column_is_refused(paths: PathSettings) -> None:
    schema = json.loads(metadata(paths)["schemaString"])
    schema["fields"][0]["metadata"]["delta.generationExpression"] = "upper('t')"
    changed(paths, {"metaData": {"schemaString": json.dumps(schema)}})
    with pytest.raises(ConfigurationError, match="a generated column"):
        create_tables(paths, (SDS_MESSAGES,))


def test_a_partitioned_table_is_refused(paths: PathSettings) -> None:
    """Readers would see nulls in the column, whatever the jobs' files have there."""
    changed(paths, {"metaData": {"partitionColumns": ["sds_kind"]}})
    with pytest.raises(ConfigurationError, match=r"sds_messages has partitions by sds_kind, which .*rebuild"):
        create_tables(paths, (SDS_MESSAGES,))


@pytest.mark.parametrize(
    ("features", "says"),
    [
        (["appendOnly", "clustering", "domainMetadata"], "the table feature clustering.*rebuild"),
        (["appendOnly", "invariants", "icebergCompatV2"], "the table feature icebergCompatV2"),
    ],
)
def test_a_feature_of_the_protocol_is_refused_by_name(paths: PathSettings, features: list[str], says: str) -> None:
    changed(paths, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}})
    with pytest.raises(ConfigurationError, match=says):
        create_tables(paths, (SDS_MESSAGES,))


def test_a_feature_that_arrow_readers_refuse_is_refused_although_no_property_uses_it(paths: PathSettings) -> None:
    """What is left after delta.enableDeletionVectors was set, and set back."""
    table = DeltaTable(paths.table(SDS_MESSAGES.name))
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(ConfigurationError, match=r"sds_messages has the table feature deletionVectors, .*rebuild"):
        create_tables(paths, (SDS_MESSAGES,))
    with pytest.raises(EnvironmentFault, match=r"sds_messages cannot be read: .*deletionVectors.* Run .*rebuild"):
        dataset_of(open_table(paths, SDS_MESSAGES))


def test_a_protocol_that_delta_rs_does_not_commit_to_is_refused(paths: PathSettings) -> None:
    """It has identity columns without a list of features; no column need be one."""
    changed(paths, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 6}})
    with pytest.raises(ConfigurationError, match=r"sds_messages has the table feature identityColumns, .*rebuild"):
        create_tables(paths, (SDS_MESSAGES,))


def test_features_that_nothing_uses_do_no_harm(paths: PathSettings) -> None:
    features = ["appendOnly", "invariants", "checkConstraints", "changeDataFeed"]
    changed(paths, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}})
    create_tables(paths, (SDS_MESSAGES,))


def test_a_table_that_cannot_be_created_is_named_with_its_place(empty: PathSettings) -> None:
    Path(empty.data_dir).parent.mkdir(parents=True, exist_ok=True)
    Path(empty.data_dir).write_text("a file where the directory should be")
    with pytest.raises(EnvironmentFault, match=r"source_gaps could not be created under .* can be written to"):
        create_tables(empty, (SOURCE_GAPS,))


@pytest.mark.parametrize("table", [table for table in TABLES if table.clock_rows], ids=lambda table: table.name)
def test_only_the_jobs_see_the_rows_of_the_recorded_clock(empty: PathSettings, table: Table) -> None:
    create_tables(empty, (table,))
    kinds = ["content", "tick", None]
    rows = [{"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": n, "sub_order": 0} for n in range(3)]
    rows = [{name: value for name, value in row.items() if name in table.names()} for row in rows]
    append_rows(empty, table, as_arrow([{**r, table.clock_rows: k} for r, k in zip(rows, kinds, strict=True)], table))
    opened = open_table(empty, table)
    assert public_dataset(opened).to_table()["kafka_offset"].to_pylist() == [0, 2]
    assert dataset_of(opened).count_rows() == 3
    assert len(TableSnapshot(empty).select(f"FROM {table.name}")) == 2


@pytest.mark.parametrize("torn", ["", "{", "x\n"], ids=["empty", "cut off", "foreign"])
def test_a_damaged_commit_is_refused_with_the_name_of_its_table(paths: PathSettings, torn: str) -> None:
    """delta-rs and Spark read an empty one as a commit of nothing."""
    log = Path(paths.table(SDS_MESSAGES.name)) / "_delta_log"
    (log / f"{1:020d}.json").write_text(torn)
    sentence = r"^The Delta table sds_messages cannot be read: .*rebuild"
    with pytest.raises(EnvironmentFault, match=sentence):
        create_tables(paths, (SDS_MESSAGES,))
    with pytest.raises(EnvironmentFault, match=sentence):
        TableSnapshot(paths).select("FROM sds_messages")
