"""Which SDS ids stand in a record that could not be decoded: evidence for the verdict *undecodable*."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.core.wire._pb import sds_pb2
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.commit import data_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.follow import LONG_ROWS, iterate_rows
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import QUARANTINE
from reliable_channel.pipeline.lookup import INDEXED, MOST_TAGS, SDS_ID_TAG, Lookup, list_values
from reliable_channel.pipeline.verdict.touched import COLUMNS, read_touched
from reliable_channel.pipeline.verdict.verdicts import _add_suspected


def found_in(*records: bytes) -> set[str]:
    batch = pa.record_batch({"stage": pa.array(["sds"] * len(records)), "raw": pa.array(records, pa.binary())})
    return {name for found in _add_suspected(iter([batch])) for name in found["sds_id"].to_pylist()}


FEW_TAGS = st.binary(max_size=40).filter(lambda some: some.count(SDS_ID_TAG) <= 6)


@given(st.text(min_size=1, max_size=31), st.text(max_size=8), FEW_TAGS, st.binary(max_size=40))
def test_the_id_of_a_garbled_message_is_found(sds_id: str, sender: str, before: bytes, after: bytes) -> None:
    message = sds_pb2.SpecMessage(sender_id=sender, message_id=sds_id, channel_id="talk").SerializeToString()
    assert sds_id in found_in(before + message + after)


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_any_bytes_give_text_that_stands_in_them(records: list[bytes]) -> None:
    for name in found_in(*records):
        assert 0 < len(name.encode()) < 128
        assert any(name.encode() in record for record in records)


def test_what_is_cut_off_is_not_made_up() -> None:
    assert found_in(b"\x12\x05abc", b"\x12", b"", b"\x12\x00", b"\x12\x02\xff\xff") == set()


def hostile(size: int, seed: int) -> bytes:
    """A record in which every second byte begins something that looks like an id of its own."""
    numbers = random.Random(seed)
    return b"".join(bytes((0x12, numbers.randrange(40, 128))) for _ in range(size // 2))


def write_undecodable(paths: PathSettings, *records: bytes) -> list[str]:
    """Add a file of undecodable records to ``quarantine``; returns the paths of all its files."""
    here = {"kafka_topic": "t", "kafka_partition": 0, "event_time": 0, "ingest_time": 0, "raw_bytes": 0}
    here |= {"raw_digest": b"", "stage": "sds", "reason": "malformed_sds"}
    rows = [{**here, "kafka_offset": number, "raw": raw} for number, raw in enumerate(records)]
    append_rows(paths, QUARANTINE, as_arrow(rows, QUARANTINE))
    return [*data_files(open_table(paths, QUARANTINE))]


def message_with(sds_id: str, sender: str = "x") -> bytes:
    return sds_pb2.SpecMessage(sender_id=sender, message_id=sds_id).SerializeToString()


def test_a_stranger_s_records_hold_few_ids_and_little_of_them_is_read(tmp_path: Path) -> None:
    """A few hundred of them had as many ids as fit in no memory, and the verdict job died of them again and again."""
    paths = PathSettings(run_dir=str(tmp_path))
    create_tables(paths, (*COLUMNS,))
    records = [*(hostile(4_096, seed) for seed in range(2 * LONG_ROWS)), message_with("genuine", "x" * 4_096)]
    write_undecodable(paths, *records)
    touched = read_touched(paths, {table: open_table(paths, table) for table in COLUMNS}, None)
    assert touched is not None
    assert "genuine" in touched.texts
    assert len(touched.texts) <= MOST_TAGS * len(records)
    # delta-rs writes the texts and bytes of rows that somebody updates as views, which Arrow does not compare.
    open_table(paths, QUARANTINE).update({"detail": "'looked at'"})
    files = [*data_files(open_table(paths, QUARANTINE))]
    pieces = [*iterate_rows(paths, QUARANTINE, files, INDEXED[QUARANTINE])]
    assert max(piece.num_rows for piece in pieces) <= LONG_ROWS
    assert sum(len(list_values(piece, QUARANTINE)) for piece in pieces) <= (MOST_TAGS + 1) * len(records)


@given(st.lists(st.lists(st.sampled_from("abcde"), max_size=4), max_size=4), st.sets(st.sampled_from("abcdefg")))
def test_ids_are_found_in_whichever_file_they_are(files: list[list[str]], wanted: set[str]) -> None:
    with TemporaryDirectory() as directory:
        paths = PathSettings(run_dir=directory)
        create_tables(paths, (QUARANTINE,))
        for ids in files:
            write_undecodable(paths, *(message_with(f"id {sds_id}") for sds_id in ids))
        suspected = Lookup.of(paths, QUARANTINE).find_suspected({f"id {sds_id}" for sds_id in wanted})
    assert suspected == {f"id {sds_id}" for sds_id in wanted & {name for ids in files for name in ids}}


def test_records_that_repeat_an_id_are_not_read_again_each_round(tmp_path: Path, monkeypatch: Any) -> None:
    """A round read all undecodable records of all files with an id that a stranger repeats, whatever he had sent."""
    paths = PathSettings(run_dir=str(tmp_path))
    create_tables(paths, (QUARANTINE,))
    for _ in range(3):
        write_undecodable(paths, *[message_with("repeated")] * 3 * LONG_ROWS)
    look_up = Lookup.of(paths, QUARANTINE)
    assert len(look_up.files_with({"repeated"})) == 3
    read: list[int] = []

    def iterate_counted(*args: Any) -> Iterator[pa.Table]:
        for rows in iterate_rows(*args):
            read.append(rows.num_rows)
            yield rows

    monkeypatch.setattr("reliable_channel.pipeline.lookup.iterate_rows", iterate_counted)
    assert look_up.find_suspected({"repeated", "of nobody"}) == {"repeated"}
    assert read == [LONG_ROWS]
