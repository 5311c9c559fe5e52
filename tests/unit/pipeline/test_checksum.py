"""The version checksum files in Delta's logs: what they say of a table, and that nothing rests on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from reliable_channel.config import PathSettings, load
from reliable_channel.lake.append import CHECKPOINT_EVERY, BatchSink, write_log_checkpoint
from reliable_channel.lake.commit import TableFile, append_files, replace_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.files import WrittenFile
from reliable_channel.lake.read import open_table
from reliable_channel.lake.tables import SDS_MESSAGES
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.ingest.stream import tick_files


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    paths = load("local").with_run_dir(tmp_path / "with a space").paths
    create_tables(paths, (SDS_MESSAGES,))
    return paths


def files(paths: PathSettings, offset: int) -> list[WrittenFile]:
    """One written file with one row, at ``offset``."""
    return tick_files(paths, {("t", 0): Progress(10**15 + offset, offset + 1)}, 10**15)


def append(paths: PathSettings, batch: int) -> None:
    BatchSink(paths, "query", batch).add_files(SDS_MESSAGES, files(paths, batch))


def place(paths: PathSettings, version: int) -> Path:
    return Path(paths.table(SDS_MESSAGES.name)) / "_delta_log" / f"{version:020d}.crc"


def checksum(paths: PathSettings, version: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place(paths, version).read_text(encoding="utf-8"))
    return found


def held(paths: PathSettings) -> tuple[int, int]:
    """Files and bytes of the table as its log has them."""
    adds = pa.table(open_table(paths, SDS_MESSAGES).get_add_actions())
    return adds.num_rows, sum(adds["size_bytes"].to_pylist())


def counted(paths: PathSettings, version: int) -> tuple[int, int]:
    """Files and bytes of the table as the checksum of a version has them."""
    found = checksum(paths, version)
    return found["numFiles"], found["tableSizeBytes"]


def test_a_checksum_counts_the_files_of_its_version(paths: PathSettings) -> None:
    for batch in range(3):
        append(paths, batch)
        assert counted(paths, batch + 1) == held(paths)


def test_a_checksum_has_the_metadata_and_protocol_of_the_log(paths: PathSettings) -> None:
    append(paths, 0)
    first = place(paths, 0).with_suffix(".json").read_text(encoding="utf-8")
    actions = {name: action for line in first.splitlines() for name, action in json.loads(line).items()}
    found = checksum(paths, 1)
    wanted = {name: value for name, value in actions["metaData"].items() if value is not None}
    schema = wanted.pop("schemaString")
    assert json.loads(found["metadata"].pop("schemaString")) == json.loads(schema)
    assert {name: value for name, value in found["metadata"].items() if value is not None} == wanted
    assert found["protocol"] == actions["protocol"]
    assert (found["numMetadata"], found["numProtocol"]) == (1, 1)


def test_behind_a_commit_without_a_checksum_all_files_are_counted(paths: PathSettings) -> None:
    append(paths, 0)
    (old,) = pa.table(open_table(paths, SDS_MESSAGES).get_add_actions()).to_pylist()
    replace_files(open_table(paths, SDS_MESSAGES), [TableFile(old["path"], old["size_bytes"])], files(paths, 0))
    append(paths, 1)
    assert not place(paths, 2).exists()
    assert counted(paths, 3) == held(paths) == (2, held(paths)[1])


def test_a_commit_beside_others_gets_none_and_the_next_counts_all_files(paths: PathSettings) -> None:
    opened = open_table(paths, SDS_MESSAGES)
    append(paths, 0)
    append_files(opened, files(paths, 1), ("another query", 0))
    assert counted(paths, 1)[0] == 1
    assert not place(paths, 2).exists()
    append(paths, 2)
    assert counted(paths, 3) == held(paths)


@pytest.mark.parametrize("broken", ["", "{", "[]", "{}", '{"tableSizeBytes": null, "numFiles": 1}'])
def test_behind_a_broken_checksum_all_files_are_counted(paths: PathSettings, broken: str) -> None:
    append(paths, 0)
    place(paths, 1).write_text(broken, encoding="utf-8")
    append(paths, 1)
    assert counted(paths, 2) == held(paths)


def test_a_checksum_that_cannot_be_written_fails_no_commit(paths: PathSettings) -> None:
    place(paths, 1).mkdir()
    append(paths, 0)
    assert held(paths)[0] == 1


def test_checksums_go_with_the_checkpoint_of_the_log(paths: PathSettings) -> None:
    for batch in range(2 * CHECKPOINT_EVERY):
        append(paths, batch)
    left = sorted(place(paths, 0).parent.glob("*.crc"))
    assert len(left) <= CHECKPOINT_EVERY + 1
    assert left[-1] == place(paths, 2 * CHECKPOINT_EVERY)


def test_the_checksum_of_a_checkpoint_stays(paths: PathSettings) -> None:
    for batch in range(CHECKPOINT_EVERY):
        append(paths, batch)
    for version in range(CHECKPOINT_EVERY):
        write_log_checkpoint(paths, SDS_MESSAGES, version)
    assert place(paths, CHECKPOINT_EVERY).exists()
