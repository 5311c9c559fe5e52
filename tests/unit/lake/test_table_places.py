"""The directories in which tables can be: whatever their names, they are used as they are or refused."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import exists, open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import SOURCE_GAPS


@pytest.mark.parametrize("name", ["two words", "日本 é", "e\u0301", "100%", "%zz", "a#b?c&d", "'\"", "*{y}", "~:;=+@<"])
def test_tables_are_in_a_directory_of_any_other_name(tmp_path: Path, name: str) -> None:
    paths = PathSettings(data_dir=str(tmp_path / name))
    create_tables(paths, (SOURCE_GAPS,))
    row = {"kafka_topic": "t", "kafka_partition": 0, "first_offset": 1, "last_offset": 2}
    append_rows(paths, SOURCE_GAPS, as_arrow([row], SOURCE_GAPS))
    assert [row["kafka_topic"] for row in rows_of(open_table(paths, SOURCE_GAPS))] == ["t"]
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "name", ["feature%2Fx", "two%20words", "back\\slash", "two\nlines", "[x]", "^", "|", os.fsdecode(b"latin \xe9")]
)
def test_a_directory_that_delta_rs_does_not_find_is_refused_before_anything_is_written(
    tmp_path: Path, name: str
) -> None:
    paths = PathSettings(data_dir=str(tmp_path / name))
    with pytest.raises(ConfigurationError) as fault:
        create_tables(paths, (SOURCE_GAPS,))
    str(fault.value).encode()
    assert [*tmp_path.iterdir()] == []


def test_a_uri_is_left_to_delta_rs() -> None:
    from reliable_channel.lake.read import refuse_location

    refuse_location("s3://bucket/feature%2Fx/clock")


@pytest.mark.parametrize("closed", [".", "source_gaps", "source_gaps/_delta_log"])
def test_tables_of_another_user_are_neither_missing_nor_damaged(closed: str) -> None:
    """The jobs make directories that only their user may read; to rebuild or to run them would be no remedy."""
    paths = PathSettings(data_dir=tempfile.mkdtemp())
    create_tables(paths, (SOURCE_GAPS,))
    place, user = Path(paths.data_dir) / closed, os.geteuid()
    for directory in Path(paths.data_dir).glob("**/"):
        directory.chmod(0o755)
    place.chmod(0o700 if user == 0 else 0)
    try:
        if user == 0:  # root may read everything
            os.seteuid(65534)
        with pytest.raises(EnvironmentFault, match="source_gaps cannot be read: this user has no permission"):
            exists(paths, SOURCE_GAPS)
    finally:
        os.seteuid(user)
        place.chmod(0o700)
        shutil.rmtree(paths.data_dir)
