"""What was rebuilt before is found in ``reassembled_messages``, without what the same micro-batch wrote."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from reliable_channel.config import PathSettings
from reliable_channel.core.segmentation import CompletedSend
from reliable_channel.core.segmentation.held import MAX_COMPLETED_PER_KEY
from reliable_channel.lake import follow, tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.follow import iterate_rows
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline import lookup
from reliable_channel.pipeline.reassembly import memory
from reliable_channel.pipeline.reassembly.memory import MAX_COMPLETED_OF_HASH, find_completed
from tests.support.bad_rows import bad_rows

START_MS = 1_767_225_600_000
HASH = b"h" * 32
SCOPE = ("p", "c", "talk", "spec", "alice")
PLACE = ("t", 0)


def message(offset: int, at_ms: int, hash_: bytes, sds_ids: list[str | None]) -> dict[str, object]:
    return {
        "kafka_topic": "t",
        "kafka_partition": 0,
        "kafka_offset": offset,
        "event_time": at_ms * 1000,
        "pubsub_topic": "p",
        "content_topic": "c",
        "channel_id": "talk",
        "family": "spec",
        "sender_id": "alice",
        "entire_message_hash": hash_,
        "sds_ids": sds_ids,
        "data_count": 2,
        "first_lamport_timestamp": at_ms,
        "send": 3,
        "one_send": offset % 2 == 0,
    }


def test_recent_messages_of_these_hashes_from_earlier_batches(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    rows = [
        message(1, START_MS - 10_000, HASH, ["old"]),
        message(2, START_MS + 2, HASH, ["a", None, "b"]),
        message(1, START_MS, HASH, ["c", "d"]),
        message(3, START_MS, b"x" * 32, ["other"]),
        message(4, START_MS + 1, HASH, ["replayed"]),
    ]
    write(paths, rows)
    found = find_completed(paths, {HASH, b"y" * 32}, START_MS * 1000, {("t", 0, 4)}, str(tmp_path))
    first = CompletedSend(SCOPE, HASH, 3, 2, None, START_MS, ("c", "d"))
    second = CompletedSend(SCOPE, HASH, 3, 2, START_MS + 2, START_MS + 2, ("a", None, "b"))
    assert found == {HASH: [(PLACE, first), (PLACE, second)]}


def test_few_of_many_messages_with_one_hash_are_made_objects(tmp_path: Path) -> None:
    """Anybody can send the segments of one payload again, as often and under as many names as they like."""
    paths = PathSettings(run_dir=str(tmp_path))
    many = 4 * MAX_COMPLETED_OF_HASH
    alice = message(0, START_MS, HASH, ["hers"])
    bot = [message(n, START_MS + n, HASH, [f"bot {n}"]) | {"sender_id": "bot"} for n in range(1, many)]
    write(paths, [alice, *bot, message(many, START_MS, b"x" * 32, ["other"])])
    both = find_completed(paths, {HASH, b"x" * 32}, START_MS * 1000, set(), str(tmp_path))
    ids = [send.sds_ids[0] for _, send in both[HASH]]
    assert ids == ["hers", *(f"bot {n}" for n in range(many - MAX_COMPLETED_PER_KEY, many))], "of each name the newest"
    assert len(both[b"x" * 32]) == 1
    write(paths, [message(many + n, START_MS + many + n, HASH, ["m"]) | {"sender_id": f"m{n}"} for n in range(many)])
    replayed = {("t", 0, 2 * many - 1 - n) for n in range(10)}
    found = find_completed(paths, {HASH}, START_MS * 1000, replayed, str(tmp_path))[HASH]
    newest = [f"m{n}" for n in range(many - 10)][-2 * MAX_COMPLETED_OF_HASH :]
    assert [send.scope[-1] for _, send in found] == newest, "a replay finds as many as the first run"


def test_rows_of_a_foreign_writer_about_the_same_message_hide_nothing(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    write(paths, [message(1, START_MS, HASH, ["c", "d"])])
    write(paths, [row | {"entire_message_hash": HASH} for row in bad_rows(tables.REASSEMBLED_MESSAGES, beyond=True)])
    found = find_completed(paths, {HASH}, START_MS * 1000, set(), str(tmp_path))
    assert (PLACE, CompletedSend(SCOPE, HASH, 3, 2, None, START_MS, ("c", "d"))) in found[HASH]


def write(paths: PathSettings, rows: list[dict[str, object]]) -> None:
    create_tables(paths, (tables.REASSEMBLED_MESSAGES,))
    append_rows(paths, tables.REASSEMBLED_MESSAGES, as_arrow(rows, tables.REASSEMBLED_MESSAGES))


def test_only_files_that_are_new_or_hold_what_is_asked_for_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = PathSettings(run_dir=str(tmp_path))
    hour = 3_600_000
    for number in range(20):
        write(paths, [message(number, START_MS + number * hour, bytes([number]) * 32, [f"id{number}"])])
    read: list[list[str]] = []

    def counted(paths: PathSettings, table: tables.Table, files: list[str], columns: list[str]) -> Iterator[pa.Table]:
        read.extend([[*columns]] * len(files))
        return iterate_rows(paths, table, files, columns)

    for module in (follow, lookup):
        monkeypatch.setattr(module, "iterate_rows", counted)
    read_completed = partial(memory.read_completed, paths, index_in=str(tmp_path))
    since = (START_MS + 15 * hour) * 1000
    assert read_completed({bytes([3]) * 32}, since).num_rows == 0, "before that time"
    assert read == [["entire_message_hash"]] * 5
    read.clear()
    assert read_completed({bytes([17]) * 32, b"x" * 32}, since)["sds_ids"].to_pylist() == [["id17"]]
    assert len(read) == 1, "the one file it stands in"
    write(paths, [message(20, START_MS + 20 * hour, b"x" * 32, ["new"])])
    DeltaTable(paths.table("reassembled_messages")).optimize.compact()
    assert read_completed({b"x" * 32}, since)["sds_ids"].to_pylist() == [["new"]], "compacted meanwhile"
    write(paths, [message(21, START_MS + 40 * hour, b"y" * 32, ["newer"])])
    read.clear()
    assert read_completed({b"y" * 32}, (START_MS + 39 * hour) * 1000)["sds_ids"].to_pylist() == [["newer"]]
    assert len(read) == 2, "the new file, for its hashes and for what was asked"
