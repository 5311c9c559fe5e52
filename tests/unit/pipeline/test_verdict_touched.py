"""What a round of verdicts takes new evidence to be about, and when it must judge everything again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.config import Settings, load
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.commit import TableFile, delete_rows, replace_files, replace_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.follow import list_added_files
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.verdict import touched
from reliable_channel.pipeline.verdict.gaps import NO_SILENCE
from reliable_channel.pipeline.verdict.position import RoundPosition, make_position
from reliable_channel.pipeline.verdict.touched import COLUMNS, Touched, read_touched
from tests.support.waiting import WAIT_S

AT = 1_767_225_600_000_000
CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/a/1/b/proto", "channel_id": "c"}
HERE = tuple(CHANNEL.values())
PAYLOAD = b"h" * 32


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = load("local", paths={"run_dir": str(tmp_path)})
    create_tables(settings.paths, COLUMNS)
    return settings


def append(settings: Settings, table: tables.Table, *rows: dict[str, Any]) -> None:
    append_rows(settings.paths, table, as_arrow([{**CHANNEL, "event_time": AT, **row} for row in rows], table))


def here(settings: Settings) -> RoundPosition:
    return make_position({table: open_table(settings.paths, table) for table in COLUMNS}, settings, NO_SILENCE)


def since(settings: Settings, position: RoundPosition) -> Touched | None:
    opened = {table: open_table(settings.paths, table) for table in COLUMNS}
    return read_touched(settings.paths, opened, position)


def names(found: Touched | None) -> Sequence[str]:
    assert found is not None
    return sorted(sds_id for _, sds_id in found.ids)


def test_only_rows_after_the_position_count_also_when_files_were_compacted(settings: Settings) -> None:
    append(settings, tables.ACKS, {"sds_id": "before"})
    position = here(settings)
    assert since(settings, position) == Touched()
    append(settings, tables.ACKS, {"sds_id": "after"})
    open_table(settings.paths, tables.ACKS).optimize.compact()
    found = since(settings, position)
    assert found is not None
    assert found.ids == {(HERE, "after")}


def test_every_table_says_which_messages_its_rows_are_about(settings: Settings) -> None:
    position = here(settings)
    place = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0}
    segment = {**place, "sds_kind": "content", "entire_message_hash": PAYLOAD, "lamport_timestamp": 7}
    append(settings, tables.SDS_MESSAGES, {**segment, "sds_id": "a", "segment_kind": "data"})
    append(settings, tables.LOST_DEPENDENCIES, {"sds_id": "b"})
    append(settings, tables.REPAIR_REQUESTS, {"sds_id": "c"})
    append(settings, tables.SENDER_EVENTS, {"sds_id": "d", "event": "sent"}, {"sds_id": "j", "event": "lost"})
    append(settings, tables.SENDER_EVENTS, {"sds_id": "k", "event": "queued", "send_id": "l"})
    append(settings, tables.INCOMPLETE_MESSAGES, {"sds_ids": ["e", None, "f"]})
    delivered = {"sds_id": "g", "first_sds_id": "h", "row_kind": "message", "entire_message_hash": PAYLOAD}
    append(settings, tables.DELIVERIES, {**delivered, **place, "first_lamport_timestamp": 5})
    append(settings, tables.STORE_PRESENCE, {"sds_id": "i", "node": "n", "message_hash": PAYLOAD})
    logged = {"vantage": "amber", "source": "received", "seen_at": AT}
    append(settings, tables.SIGHTINGS, {**logged, "message_hash": b"l" * 32})
    append(settings, tables.SIGHTINGS, {**logged, "message_hash": b"b" * 32, "source": "relay"})
    append(settings, tables.SIGHTINGS, {**logged, "message_hash": None})
    garbled = b"\x0a\x01a\x12\x05broke\xff"
    append_rows(
        settings.paths, tables.QUARANTINE, as_arrow([{**place, "stage": "sds", "raw": garbled}], tables.QUARANTINE)
    )
    found = since(settings, position)
    assert found is not None
    assert names(found) == [*"abcdefghijkl"]
    assert found.payloads == {PAYLOAD}
    assert found.rebuilt == {(PAYLOAD, 0)}
    assert found.spans == {0}
    assert found.envelopes == {PAYLOAD, b"l" * 32}, "bridges' sightings are of records that ingest has"
    assert found.texts == {f"{b'h'.hex() * 32}-5", "broke"}, "the key of the delivery, and what a broken record holds"
    assert found.lamport == {HERE: 7}


def test_a_payload_that_came_whole_links_no_messages(settings: Settings) -> None:
    position = here(settings)
    place = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0}
    bare = {**place, "segment_kind": "bare", "entire_message_hash": PAYLOAD, "sds_id": "a"}
    append(settings, tables.SDS_MESSAGES, {**bare, "sds_kind": "content"})
    append(settings, tables.DELIVERIES, {**bare, "row_kind": "message", "first_sds_id": "a"})
    found = since(settings, position)
    assert found is not None
    assert not found.payloads
    assert not found.rebuilt


def test_what_retention_deletes_changes_no_verdict_and_other_changes_ask_for_all(settings: Settings) -> None:
    append(settings, tables.ACKS, {"sds_id": "old", "event_time": AT - 1}, {"sds_id": "a"}, {"sds_id": "b"})
    position = here(settings)
    assert delete_rows(open_table(settings.paths, tables.ACKS), "event_time < '2026-01-01T00:00:00.000000Z'") == 1
    assert since(settings, position) == Touched()
    old = "event_time < '2026-01-01T00:00:00.000000Z'"
    for sds_id in ("c", "d"):
        position = here(settings)
        row = as_arrow([{"sds_id": sds_id, "event_time": AT - 1}], tables.ACKS)
        replace_rows(open_table(settings.paths, tables.ACKS), old, row)
    assert since(settings, position) is None, "a row was added"
    position = here(settings)
    assert delete_rows(open_table(settings.paths, tables.ACKS), "sds_id = 'a'") == 1
    assert since(settings, position) is None
    position = here(settings)
    table = open_table(settings.paths, tables.ACKS)
    replace_files(table, [TableFile(path, 1) for path in table.get_add_actions().column("path").to_pylist()], [])
    assert since(settings, position) is None


def test_other_tables_lost_commits_and_very_many_rows_ask_for_all(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = here(settings)
    other = RoundPosition({**position.read, "acks": ("another table", 0)}, "", "")
    assert since(settings, other) is None
    ahead = RoundPosition({**position.read, "acks": (position.read["acks"][0], 9)}, "", "")
    assert since(settings, ahead) is None
    append(settings, tables.ACKS, {"sds_id": "a"}, {"sds_id": "b"})
    monkeypatch.setattr(touched, "MAX_NEW_ROWS", 1)
    assert since(settings, position) is None
    assert since(settings, None) is None
    monkeypatch.undo()
    assert names(since(settings, position)) == ["a", "b"]
    assert names(since(settings, None)) == ["a", "b"], "without a position all rows are new"
    opened = {table: open_table(settings.paths, table) for table in COLUMNS}
    (Path(settings.paths.table("acks")) / "_delta_log" / f"{1:020d}.json").unlink()
    assert read_touched(settings.paths, opened, position) is None


def test_the_position_is_the_same_in_every_process() -> None:
    """Or each run of the job would judge everything, as if the settings had changed."""
    asked = (
        "from reliable_channel.config import load\n"
        "from reliable_channel.pipeline.verdict.gaps import NO_SILENCE\n"
        "from reliable_channel.pipeline.verdict.position import make_position\n"
        "print(make_position({}, load('local'), NO_SILENCE))"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", asked],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=WAIT_S,
        )
        for seed in ("0", "1", "2")
    ]
    assert len({run.stdout for run in runs}) == 1


def test_files_that_vacuum_removed_ask_for_all(settings: Settings) -> None:
    position = here(settings)
    append(settings, tables.ACKS, {"sds_id": "a"})
    opened = open_table(settings.paths, tables.ACKS)
    (file,) = list_added_files(settings.paths, tables.ACKS, opened, 0) or []
    (Path(settings.paths.table("acks")) / file).unlink()
    assert since(settings, position) is None
