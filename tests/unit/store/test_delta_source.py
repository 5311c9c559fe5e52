"""The ``envelopes`` table as a source: answers as from memory, while it grows and is compacted and vacuumed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.gateway.delta_source import DeltaSource
from reliable_channel.pipeline.tables import ENVELOPES
from reliable_channel.store.index import EnvelopeIndex
from reliable_channel.store.memory_source import MemorySource
from reliable_channel.store.source import Position, Selection, read_page
from reliable_channel.wire.waku import WakuMessage, encode_waku_message, message_hash

PUBSUB_TOPICS = ["/waku/2/rs/16/32", "/waku/2/rs/16/33"]
TOPICS = ["/a/1/x/p", "/a/1/y/p", "/a/1/z/p"]
BASE = 1_795_254_432_521_844_140

TYPES = {"STRING": pa.string(), "INT": pa.int32(), "BIGINT": pa.int64(), "BOOLEAN": pa.bool_(), "BINARY": pa.binary()}


def append(table: Path, envelopes: list[tuple[str, WakuMessage]]) -> None:
    """Rows as the ingest job writes them."""
    rows = []
    for offset, (pubsub_topic, message) in enumerate(envelopes):
        value = encode_waku_message(message)
        rows.append(
            {
                "kafka_topic": "waku.envelopes",
                "kafka_partition": 0,
                "kafka_offset": offset,
                "source": "relay",
                "pubsub_topic": pubsub_topic,
                "content_topic": message.content_topic,
                "message_hash": message_hash(pubsub_topic, message),
                "value": value,
                "value_bytes": len(value),
                "sender_timestamp_ns": message.timestamp,
                "ephemeral": message.ephemeral,
                "kind": "plain",
            }
        )
    schema = pa.schema([(c.name, TYPES.get(c.type, pa.timestamp("us", tz="UTC"))) for c in ENVELOPES.columns])
    write_deltalake(table, pa.Table.from_pylist(rows, schema), mode="append")


def some(count: int, first: int = 0) -> list[tuple[str, WakuMessage]]:
    return [
        (PUBSUB_TOPICS[n % 2], WakuMessage(b"%d" % n, TOPICS[n % 3], None, BASE + n // 2, b"meta"))
        for n in range(first, first + count)
    ]


def everything(source: DeltaSource) -> list[WakuMessage]:
    places = source.select(Selection(), None, True, 1000)
    data = source.load([p.message_hash for p in places])
    return [data[p.message_hash][1] for p in places]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "envelopes"


@pytest.fixture
def source(table: Path, tmp_path: Path) -> DeltaSource:
    return DeltaSource(str(table), tmp_path / "index.sqlite", refresh_s=0)


def test_a_table_that_is_not_there_yet_has_nothing(source: DeltaSource) -> None:
    assert source.select(Selection(), None, True, 10) == []
    assert source.position(bytes(32)) is None


def test_it_follows_the_table_and_shows_what_came_twice_once(table: Path, source: DeltaSource) -> None:
    append(table, some(10))
    assert len(everything(source)) == 10
    append(table, some(12))
    append(table, some(2))
    assert sorted(m.payload for m in everything(source)) == sorted(m.payload for _, m in some(12))


def test_ephemeral_envelopes_are_never_stored(table: Path, source: DeltaSource) -> None:
    append(table, [(PUBSUB_TOPICS[0], WakuMessage(b"gone", TOPICS[0], None, BASE, ephemeral=True)), *some(1)])
    assert [m.payload for m in everything(source)] == [b"0"]


def test_compaction_delete_and_vacuum_lose_nothing_that_the_table_has(table: Path, source: DeltaSource) -> None:
    for first in range(0, 12, 3):
        append(table, some(3, first))
    append(table, some(12))
    before = [m.payload for m in everything(source)]
    delta = DeltaTable(table)
    delta.optimize.compact()
    delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert [m.payload for m in everything(source)] == before
    delta = DeltaTable(table)
    delta.delete(f"content_topic = '{TOPICS[1]}'")
    assert {m.content_topic for m in everything(source)} == {TOPICS[0], TOPICS[2]}


def test_a_vacuum_between_index_and_read_is_followed(table: Path, tmp_path: Path) -> None:
    clock = [0.0]
    source = DeltaSource(str(table), tmp_path / "index.sqlite", refresh_s=60, monotonic=lambda: clock[0])
    append(table, some(4))
    append(table, some(4, 4))
    places = source.select(Selection(), None, True, 100)
    delta = DeltaTable(table)
    delta.optimize.compact()
    delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(source.load([p.message_hash for p in places])) == 8


def test_an_index_of_another_table_is_not_believed(table: Path, tmp_path: Path) -> None:
    index = tmp_path / "index.sqlite"
    append(table, some(4))
    first = DeltaSource(str(table), index)
    assert len(everything(first)) == 4
    first.close()
    other = tmp_path / "other"
    append(other, some(2))
    assert len(everything(DeltaSource(str(other), index))) == 2


def test_an_index_that_is_no_database_is_built_again(table: Path, tmp_path: Path) -> None:
    index = tmp_path / "index.sqlite"
    index.write_bytes(b"no database at all" * 1000)
    append(table, some(4))
    assert len(everything(DeltaSource(str(table), index))) == 4


def test_a_restart_reads_no_file_again(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(table, some(4))
    first = DeltaSource(str(table), tmp_path / "index.sqlite")
    everything(first)
    first.close()
    monkeypatch.setattr(EnvelopeIndex, "add_file", lambda *_: pytest.fail("indexed again"))
    assert len(everything(DeltaSource(str(table), tmp_path / "index.sqlite"))) == 4


rows = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2), st.integers(0, 4)), max_size=20)


@given(
    files=st.lists(rows, min_size=1, max_size=3),
    pubsub=st.none() | st.sampled_from([*PUBSUB_TOPICS, "unknown"]),
    contents=st.none() | st.lists(st.sampled_from([*TOPICS, "unknown"]), min_size=1, max_size=3),
    start=st.none() | st.integers(0, 4),
    end=st.none() | st.integers(0, 4),
    cursor=st.none() | st.integers(0, 100),
    by_hash=st.booleans(),
    forward=st.booleans(),
    size=st.integers(1, 8),
)
@settings(max_examples=200, deadline=None)
def test_the_index_gives_the_pages_that_memory_gives(
    files: list[list[tuple[int, int, int]]],
    pubsub: str | None,
    contents: list[str] | None,
    start: int | None,
    end: int | None,
    cursor: int | None,
    by_hash: bool,
    forward: bool,
    size: int,
) -> None:
    memory, index = MemorySource(), EnvelopeIndex(":memory:", "t")
    for number, file in enumerate(files):
        found = []
        for p, c, t in file:
            message = WakuMessage(b"%d%d%d" % (p, c, t), TOPICS[c], None, BASE + t)
            found.append((BASE + t, memory.add(PUBSUB_TOPICS[p], message), PUBSUB_TOPICS[p], TOPICS[c]))
        index.add_file(f"{number}.parquet", found)
    places = memory.select(Selection(), None, True, 1000)
    hashes = tuple(p.message_hash for p in places[::2]) if by_hash else None
    selection = Selection(
        pubsub,
        None if contents is None else tuple(contents),
        None if start is None else BASE + start,
        None if end is None else BASE + end,
        hashes,
    )
    after: Position | None = places[cursor % len(places)] if cursor is not None and places else None
    assert index.select(selection, after, forward, size) == memory.select(selection, after, forward, size)
    index.close()


def test_a_page_reads_payloads_of_its_own_envelopes_only(table: Path, source: DeltaSource) -> None:
    append(table, some(30))
    page = read_page(source, Selection(), cursor=None, page_size=5, forward=False, include_data=True)
    expected = sorted((m.timestamp or 0, message_hash(p, m)) for p, m in some(30))[-5:]
    assert [e.message_hash for e in page.entries] == [h for _, h in expected]
    assert all(e.message is not None and e.pubsub_topic in PUBSUB_TOPICS for e in page.entries)
