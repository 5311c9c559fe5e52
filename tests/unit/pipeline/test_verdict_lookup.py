"""A look-up of a round reads only the files that hold what it asks for, and finds all of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.lake import follow, tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.commit import data_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.follow import NAMING_ROWS
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.file_index import FileIndex
from reliable_channel.pipeline.lookup import INDEXED, NAMING, UNSETTLED, Lookup, is_among, list_values
from tests.support.disk import files_up_to

names = st.text(max_size=3)
contents = st.dictionaries(st.sampled_from("abcdefgh"), st.sets(names, max_size=5), max_size=8)


class Counted:
    """The values of files, and how often each was read."""

    def __init__(self, files: dict[str, set[str]]) -> None:
        self.files, self.read = files, list[str]()

    def __call__(self, file: str) -> list[pa.Array]:
        self.read.append(file)
        return [pa.array([None, value.encode()], pa.binary()) for value in sorted(self.files[file])]


@given(st.lists(st.tuples(contents, st.sets(names, max_size=4)), max_size=6))
def test_any_history_of_files_gives_those_that_hold_a_value(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[dict[str, set[str]], set[str]]]
) -> None:
    directory = tmp_path_factory.mktemp("index")
    for number, (files, wanted) in enumerate(rounds):
        if number % 2:  # a data file never changes: other contents have another name
            files = {f"{number}/{name}": values for name, values in files.items()}
        else:
            files = {f"{name}/{sorted(values)}": values for name, values in files.items()}
        found = FileIndex(directory, Counted(files)).files_with(files, wanted)
        assert found == {name for name, values in files.items() if values & wanted}


def test_a_file_is_read_once_and_there_are_few_packs(tmp_path: Path) -> None:
    counted = Counted({f"file {number}": {f"value {number}"} for number in range(200)})
    live = list[str]()
    for number in range(200):
        live.append(f"file {number}")
        assert FileIndex(tmp_path, counted).files_with(live, {"value 0", "no value"}) == {"file 0"}
    assert counted.read == live
    assert len([*tmp_path.glob("*.arrow")]) <= 8


def test_of_tasks_that_look_up_at_once_only_one_reads_a_file(tmp_path: Path) -> None:
    counted = Counted({f"file {number}": {f"value {number}"} for number in range(4)})
    together = Barrier(4)

    def look_up(number: int) -> set[str]:
        together.wait()
        return FileIndex(tmp_path, counted).files_with(counted.files, [f"value {number}"])

    with ThreadPoolExecutor(4) as pool:
        assert [*pool.map(look_up, range(4))] == [{f"file {number}"} for number in range(4)]
    assert sorted(counted.read) == sorted(counted.files)


@pytest.mark.parametrize("damage", [b"", b"no Arrow at all", None])
def test_what_is_lost_of_the_index_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    counted = Counted({"file": {"value"}, "other": {"nothing"}})
    for _ in range(2):
        assert FileIndex(tmp_path, counted).files_with(counted.files, ["value"]) == {"file"}
        (pack,) = tmp_path.glob("*.arrow")
        if damage is None:
            pack.unlink()
        else:
            pack.write_bytes(damage)
    assert counted.read == ["file", "other"] * 2


def test_a_full_disk_leaves_no_part_of_an_index(tmp_path: Path) -> None:
    """A round fails once a minute meanwhile."""
    counted = Counted({"file": {f"value {number}" for number in range(1_000)}})
    index = FileIndex(tmp_path, counted)
    for _ in range(2):
        with files_up_to(1 << 12), pytest.raises(OSError, match="File too large"):
            index.files_with(["file"], ["value 7"])
    assert index.files_with(["file"], ["value 7"]) == {"file"}
    assert {file.suffix for file in tmp_path.iterdir()} == {"", ".arrow"}


def test_what_is_only_in_files_that_are_gone_is_deleted(tmp_path: Path) -> None:
    counted = Counted({"file": {"value"}, "compacted": {"value"}})
    assert FileIndex(tmp_path, counted).files_with(["file"], ["value"]) == {"file"}
    assert FileIndex(tmp_path, counted).files_with(["compacted"], ["value"]) == {"compacted"}
    assert len([*tmp_path.glob("*.arrow")]) == 1


def test_files_without_what_is_asked_for_are_not_read(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    create_tables(paths, (tables.ACKS,))
    for sds_id in ("a", "b", "c", "b"):
        append_rows(paths, tables.ACKS, as_arrow([{"sds_id": sds_id}, {"sds_id": None}], tables.ACKS))
    opened = open_table(paths, tables.ACKS)
    look_up = Lookup(paths, tables.ACKS, data_files(opened))
    (of_a,) = look_up.files_with({"a"})
    assert set(look_up.files_with({"b", "z"})) < set(data_files(opened))
    for file in set(data_files(opened)) - {of_a}:
        (Path(paths.table("acks")) / file).unlink()
    found = Lookup(paths, tables.ACKS, data_files(opened)).rows(("sds_id",), {"a"}, is_among("sds_id", {"a"}))
    assert found["sds_id"].to_pylist() == ["a"]
    assert look_up.rows(("sds_id",), set(), is_among("sds_id", set())).num_rows == 0


def indexed(table: tables.Table, *rows: dict[str, Any]) -> set[bytes]:
    found = list_values(as_arrow(rows, table).select(INDEXED[table]), table)
    return {value for value in found.to_pylist() if value is not None}


def test_a_verdict_is_looked_up_by_ids_key_payload_and_by_being_open() -> None:
    verdict = {"sds_ids": ["x", "y"], "message_key": "k", "entire_message_hash": b"h", "settled": True}
    by_name = {b"x", b"y", b"k", b"h"}
    assert indexed(tables.DELIVERY_STATUS, verdict, {"settled": None}) == by_name
    assert indexed(tables.DELIVERY_STATUS, verdict, {"settled": False}) == by_name | {UNSETTLED}


def test_a_quarantined_record_is_looked_up_by_what_may_be_its_id() -> None:
    garbled = b"\x0a\x05alice\x12\x02id\xff"
    row = {"message_hash": b"h", "stage": "sds", "raw": garbled}
    assert indexed(tables.QUARANTINE, row, {"stage": "envelope"}) == {b"h", b"id"}
    assert indexed(tables.QUARANTINE, {**row, "stage": "segmentation"}) == {b"h"}


def test_every_table_of_evidence_can_be_looked_up() -> None:
    for table in INDEXED:
        assert indexed(table, {}) == set()


@pytest.mark.parametrize("at_once", [1, 3, 1_000])
def test_what_is_looked_up_does_not_depend_on_how_many_rows_are_read_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """A compacted file of 23 MB took 1 GB to index: its causal histories were decoded as a whole."""
    monkeypatch.setattr(follow, "NAMING_ROWS", at_once)
    paths, table = PathSettings(run_dir=str(tmp_path)), tables.SDS_MESSAGES
    create_tables(paths, (table,))
    here = {"kafka_topic": "t", "kafka_partition": 0, "event_time": 0}
    for ids in (range(7), range(7, 12)):
        history = {n: [{"sds_id": f"id {max(n - back, 0)}"} for back in (1, 2)] for n in ids}
        rows = [{**here, "kafka_offset": n, "sds_id": f"id {n}", "causal_history": history[n]} for n in ids]
        append_rows(paths, table, as_arrow(rows, table))
    look_up = Lookup.of(paths, table)
    assert {piece.num_rows for piece in look_up.iterate(NAMING, {"id 6"})} <= {*range(1, at_once + 1)}
    assert [len(look_up.files_with({f"id {n}"})) for n in (4, 6, 11, 12)] == [1, 2, 1, 0]
    assert look_up.find_naming({"id 5", "id 6"}) == {"id 6", "id 7", "id 8"}
    assert look_up.find_naming(set()) == set()
    rows_of = look_up.rows(NAMING, {"id 3", "id 9"}, is_among("sds_id", {"id 3", "id 9"}))
    assert sorted(rows_of["sds_id"].to_pylist()) == ["id 3", "id 9"]


def test_of_a_message_with_many_names_that_is_repeated_only_the_last_names_are_held(tmp_path: Path) -> None:
    """5 000 copies of a message that names 1 000 ids took a round of verdicts 2 GB."""
    paths, table = PathSettings(run_dir=str(tmp_path)), tables.SDS_MESSAGES
    create_tables(paths, (table,))
    history = [{"sds_id": f"named {n}"} for n in range(30)]
    copy = {"kafka_topic": "t", "kafka_partition": 0, "event_time": 0, "sds_id": "copied", "causal_history": history}
    other = {**copy, "kafka_offset": NAMING_ROWS, "sds_id": "other", "causal_history": history[:3]}
    append_rows(paths, table, as_arrow([*({**copy, "kafka_offset": n} for n in range(NAMING_ROWS)), other], table))
    look_up, ids = Lookup.of(paths, table), {"copied", "other"}
    assert [piece.num_rows for piece in look_up.iterate(NAMING, ids)] == [NAMING_ROWS, 1]
    messages = look_up.messages(NAMING, ids, is_among("sds_id", ids), 10)
    assert {len(named) for named in messages["causal_history"].to_pylist()} == {10, 3}
    assert messages["causal_history"][0].as_py() == messages["causal_history"][NAMING_ROWS - 1].as_py()
    assert [entry["sds_id"] for entry in messages["causal_history"][0].as_py()] == [f"named {n}" for n in range(20, 30)]
    assert look_up.messages(NAMING, {"copied"}, is_among("sds_id", {"unknown"}), 10).num_rows == 0
