"""Every reader without Spark opens a table's files in one way (``lake/read.py`` says why)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as fs
from deltalake import DeltaTable, write_deltalake

from reliable_channel.lake.read import dataset_of, rows_of

ROOT = Path(__file__).parents[3]


def test_a_local_table_is_read_without_python_in_arrow_s_threads(tmp_path: Path) -> None:
    place = tmp_path / "a place % with ünusual=signs"
    write_deltalake(place, pa.table({"a": [1, 2], "b": ["x", "y"]}))
    write_deltalake(place, pa.table({"a": [3], "b": ["z"]}), mode="append")
    table = DeltaTable(place)
    assert sorted(row["a"] for row in rows_of(table, ["a"])) == [1, 2, 3]
    (used,) = {type(fragment.filesystem) for fragment in dataset_of(table).get_fragments()}
    assert used is fs.SubTreeFileSystem


DOCUMENTED_READERS = ("table_readers.py", "test_statistics.py", "test_statistics_in_spark.py")
"""Tests of what the readers of the documents see: they open tables as a stranger does."""


def test_nothing_opens_files_another_way() -> None:
    others = [
        str(file.relative_to(ROOT))
        for folder in ("reliable_channel", "jobs", "bench", "tests")
        for file in (ROOT / folder).rglob("*.py")
        if file.name not in ("read.py", *DOCUMENTED_READERS)
        if ".to_pyarrow" + "_" in file.read_text(encoding="utf-8")
    ]
    assert others == []


def test_a_process_may_end_right_after_reading(tmp_path: Path) -> None:
    for number in range(8):
        write_deltalake(tmp_path / "t", pa.table({"a": [number] * 1_000}), mode="append")
    read = (
        "from deltalake import DeltaTable; from reliable_channel.lake.read import rows_of; "
        f"print(len(rows_of(DeltaTable({str(tmp_path / 't')!r}))))"
    )
    ended = [
        subprocess.Popen([sys.executable, "-c", read], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [(*process.communicate(), process.returncode) for process in ended] == [("8000\n", "", 0)] * 3
