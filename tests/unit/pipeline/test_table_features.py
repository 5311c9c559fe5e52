"""Tables that demand more of their writers than the jobs do: refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from reliable_channel.config import PathSettings, load
from reliable_channel.errors import ConfigurationError, EnvironmentFault
from reliable_channel.pipeline.storage.ddl import create_tables
from reliable_channel.pipeline.tables import SEGMENTS, SOURCE_GAPS, TABLES
from tests.support import error_page


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    found = load("local").with_run_dir(tmp_path).paths
    create_tables(found, (SEGMENTS,))
    return found


def changed(paths: PathSettings, *actions: dict[str, Any]) -> None:
    """The table's log with other actions of the kinds given, as another engine could have written it."""
    log = Path(paths.table(SEGMENTS.name)) / "_delta_log" / f"{0:020d}.json"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    new = {kind: action for each in actions for kind, action in each.items()}
    lines = [{kind: {**line[kind], **new.get(kind, {})} for kind in line} for line in lines]
    log.write_text("\n".join(json.dumps(line) for line in lines))


def metadata(paths: PathSettings) -> dict[str, Any]:
    log = Path(paths.table(SEGMENTS.name)) / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    return next(dict(action["metaData"]) for action in actions if "metaData" in action)


def with_property(paths: PathSettings, **configuration: str) -> None:
    known = metadata(paths)["configuration"]
    changed(paths, {"metaData": {"configuration": {**known, **configuration}}})


def test_every_table_that_this_version_creates_is_one_that_it_writes(tmp_path: Path) -> None:
    found = load("local").with_run_dir(tmp_path).paths
    create_tables(found, TABLES)
    create_tables(found, TABLES)
    for table in TABLES:
        created = DeltaTable(found.table(table.name))
        assert created.protocol().writer_features is None
        assert [field.metadata["comment"] for field in created.schema().fields] == [c.comment for c in table.columns]
        assert [field.nullable for field in created.schema().fields] == [c.nullable for c in table.columns]
        assert tuple(created.metadata().partition_columns) == table.partition_by


def test_a_check_constraint_is_refused_by_name(paths: PathSettings) -> None:
    DeltaTable(paths.table(SEGMENTS.name)).alter.add_constraint({"no_ticks": "sds_kind <> 'tick'"})
    with pytest.raises(ConfigurationError, match=r"segments has the constraint no_ticks \(CHECK .*rebuild") as fault:
        create_tables(paths, (SEGMENTS,))
    assert error_page.expected("A table that another engine altered").fullmatch(str(fault.value))


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
    with pytest.raises(ConfigurationError, match=f"segments has {name}, which"):
        create_tables(paths, (SEGMENTS,))


def test_a_generated_column_is_refused(paths: PathSettings) -> None:
    schema = json.loads(metadata(paths)["schemaString"])
    schema["fields"][0]["metadata"]["delta.generationExpression"] = "upper('t')"
    changed(paths, {"metaData": {"schemaString": json.dumps(schema)}})
    with pytest.raises(ConfigurationError, match="a generated column"):
        create_tables(paths, (SEGMENTS,))


@pytest.mark.parametrize(
    ("features", "says"),
    [
        (["appendOnly", "clustering", "domainMetadata"], "liquid clustering.*an earlier version.*rebuild"),
        (["appendOnly", "invariants", "icebergCompatV2"], "the table feature icebergCompatV2"),
    ],
)
def test_a_feature_of_the_protocol_is_refused_by_name(paths: PathSettings, features: list[str], says: str) -> None:
    changed(paths, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}})
    with pytest.raises(ConfigurationError, match=says):
        create_tables(paths, (SEGMENTS,))


def test_features_that_nothing_uses_do_no_harm(paths: PathSettings) -> None:
    features = ["appendOnly", "invariants", "checkConstraints", "changeDataFeed"]
    changed(paths, {"protocol": {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}})
    create_tables(paths, (SEGMENTS,))


def test_a_table_that_cannot_be_created_is_named_with_its_place(tmp_path: Path) -> None:
    found = load("local").with_run_dir(tmp_path).paths
    Path(found.data_dir).parent.mkdir(parents=True, exist_ok=True)
    Path(found.data_dir).write_text("a file where the directory should be")
    with pytest.raises(EnvironmentFault, match=r"source_gaps could not be created under .* can be written to"):
        create_tables(found, (SOURCE_GAPS,))
