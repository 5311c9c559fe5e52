"""What has arrived is looked up in the files that have it, however long the tables are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reliable_channel.config import Settings, load
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.evidence.arrivals import drop_known, find_arrived
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ENVELOPES, SDS_MESSAGES, Table
from reliable_channel.transport.store.model import StoreEntry

RECORD = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 0, "event_time": 0, "ingest_time": 0}
CHANNEL = {"pubsub_topic": "p", "content_topic": "c", "channel_id": "talk"}


def append(settings: Settings, table: Table, *rows: Mapping[str, Any]) -> Path:
    """Append rows; returns the new file."""
    create_tables(settings.paths, (table,))
    before = {*Path(settings.paths.table(table.name)).glob("*.parquet")}
    append_rows(settings.paths, table, as_arrow([{**RECORD, **CHANNEL, **row} for row in rows], table))
    (file,) = {*Path(settings.paths.table(table.name)).glob("*.parquet")} - before
    return file


def test_only_files_with_the_message_are_read_again(tmp_path: Path) -> None:
    settings = load("local", paths={"run_dir": str(tmp_path)})
    append(settings, SDS_MESSAGES, {"sds_id": "a", "sds_kind": "content"})
    other = append(settings, SDS_MESSAGES, *({"sds_id": name, "sds_kind": "content"} for name in ("0", "z")))
    append(settings, SDS_MESSAGES, {"sds_kind": "tick"})
    assert find_arrived(settings, {"a", "c"}) == {("p", "c", "talk", "a")}
    other.unlink()
    assert find_arrived(settings, {"a", "c"}) == {("p", "c", "talk", "a")}


def test_only_files_with_the_envelope_are_read_again(tmp_path: Path) -> None:
    settings = load("local", paths={"run_dir": str(tmp_path)})
    entries = [StoreEntry(bytes([n]) * 32, WakuMessage(bytes([n]), "c", 7), "p") for n in range(3)]
    append(settings, ENVELOPES, {"message_hash": entries[0].message_hash, "source": "relay", "kind": "sds"})
    other = append(settings, ENVELOPES, {"message_hash": b"x" * 32, "source": "relay", "kind": "sds"})
    assert drop_known(settings, entries) == entries[1:]
    other.unlink()
    assert drop_known(settings, entries) == entries[1:]
