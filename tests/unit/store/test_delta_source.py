"""The ``envelopes`` table as a source: answers as from memory, while it grows and is compacted and vacuumed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.evidence.delta_source import DeltaSource
from reliable_channel.evidence.envelope_files import EnvelopeFiles
from reliable_channel.lake.follow import LONG_ROWS
from reliable_channel.transport.store.index import EnvelopeIndex, IndexRow
from reliable_channel.transport.store.model import StoreQuery
from reliable_channel.transport.store.source import MemorySource, Position, read_page
from tests.support.envelope_rows import BASE, PUBSUB_TOPICS, TOPICS, append, some
from tests.support.examples import examples
from tests.support.waiting import WAIT_S, until
from tests.unit.channel.channel_world import fail_with


def everything(source: DeltaSource) -> list[WakuMessage]:
    source.refresh()
    places = source.select(StoreQuery(), None, 1000)
    data = source.load([p.message_hash for p in places])
    return [data[p.message_hash][1] for p in places]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "envelopes"


@pytest.fixture
def source(table: Path, tmp_path: Path) -> DeltaSource:
    return DeltaSource(str(table), tmp_path / "index.sqlite")


def test_a_table_that_is_not_there_yet_has_nothing(source: DeltaSource) -> None:
    source.refresh()
    assert source.select(StoreQuery(), None, 10) == []
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


def test_a_vacuum_between_index_and_read_is_followed(table: Path, source: DeltaSource) -> None:
    append(table, some(4))
    append(table, some(4, 4))
    source.refresh()
    places = source.select(StoreQuery(), None, 100)
    delta = DeltaTable(table)
    delta.optimize.compact()
    delta.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(source.load([p.message_hash for p in places])) == 8


def test_who_must_not_wait_gets_what_is_in_memory_and_small(table: Path, source: DeltaSource) -> None:
    append(table, some(4))
    append(table, [(PUBSUB_TOPICS[0], WakuMessage(bytes(100_000), TOPICS[0], None, BASE + 9))])
    source.refresh()
    *small, large = (place.message_hash for place in source.select(StoreQuery(), None, 10))
    with source.read_without_waiting() as reading:
        assert reading is not None
        with pytest.raises(BlockingIOError):
            reading.load(small)
    loaded = source.load([*small, large])
    with source.read_without_waiting() as reading:
        assert reading is not None
        assert reading.load(small) == {one: loaded[one] for one in small}
        with pytest.raises(BlockingIOError):
            reading.load([large])
        with ThreadPoolExecutor(1) as other:
            assert other.submit(lambda: source.read_without_waiting().__enter__()).result(WAIT_S) is None


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
@settings(max_examples=examples(100), deadline=None)
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
    memory, place = MemorySource(), tempfile.TemporaryDirectory()
    index = EnvelopeIndex(Path(place.name) / "index.sqlite", "t")
    for number, file in enumerate(files):
        found: list[IndexRow] = []
        for p, c, t in file:
            message = WakuMessage(b"%d%d%d" % (p, c, t), TOPICS[c], None, BASE + t)
            stored = memory.add(PUBSUB_TOPICS[p], message)
            found.append(IndexRow(BASE + t, stored, PUBSUB_TOPICS[p], TOPICS[c], len(found)))
        index.add_file(f"{number}.parquet", found)
    places = memory.select(StoreQuery(), None, 1000)
    hashes = tuple(p.message_hash for p in places[::2]) if by_hash else ()
    query = StoreQuery(
        pubsub,
        tuple(contents or ()),
        None if start is None else BASE + start,
        None if end is None else BASE + end,
        hashes,
        forward=forward,
    )
    after: Position | None = places[cursor % len(places)] if cursor is not None and places else None
    assert index.select(query, after, size) == memory.select(query, after, size)
    index.close()
    place.cleanup()


def test_a_page_reads_payloads_of_its_own_envelopes_only(table: Path, source: DeltaSource) -> None:
    append(table, some(30))
    source.refresh()
    page = read_page(source, StoreQuery(page_size=5, forward=False))
    expected = sorted((m.timestamp or 0, message_hash(p, m)) for p, m in some(30))[-5:]
    assert [e.message_hash for e in page.entries] == [h for _, h in expected]
    assert all(e.message is not None and e.pubsub_topic in PUBSUB_TOPICS for e in page.entries)


def test_a_query_without_filters_walks_in_the_order_of_the_page(tmp_path: Path) -> None:
    """It does not sort, nor scan an index of another order: its cost is the page's, whatever the size."""
    index = EnvelopeIndex(tmp_path / "index.sqlite", "t")
    index.add_file("a", [IndexRow(n, n.to_bytes(32, "big"), "p", "c", n) for n in range(5_000)])
    counted = {}
    for name, query in (("all", StoreQuery()), ("range", StoreQuery(start_time_ns=100, end_time_ns=4_900))):
        for forward in (True, False):
            steps = 0

            def count() -> int:
                nonlocal steps
                steps += 1
                return 0

            index._db.set_progress_handler(count, 100)
            assert len(index.select(replace(query, forward=forward), None, 20)) == 20
            counted[name, forward] = steps
    assert max(counted.values()) <= 20, counted
    index.close()


def test_queries_see_what_was_there_while_new_files_are_indexed(
    table: Path, source: DeltaSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, some(4))
    source.refresh()
    append(table, some(4, 4))
    add_file, seen = EnvelopeIndex.add_file, []

    def during(index: EnvelopeIndex, path: str, rows: object) -> int:
        def half() -> object:
            for row in rows:  # type: ignore[attr-defined]
                seen.append(len(source.select(StoreQuery(), None, 100)))
                yield row

        return add_file(index, path, half())  # type: ignore[arg-type]

    monkeypatch.setattr(EnvelopeIndex, "add_file", during)
    source.refresh()
    assert seen == [4, 4, 4, 4]
    assert len(source.select(StoreQuery(), None, 100)) == 8


def test_before_the_index_is_complete_every_query_is_refused_with_the_reason(source: DeltaSource) -> None:
    assert source.fault() == "the archive is being indexed"
    with pytest.raises(EnvironmentFault, match="being indexed"):
        source.select(StoreQuery(), None, 1)


def test_a_table_that_vanished_is_a_fault_and_one_that_came_back_is_served(table: Path, source: DeltaSource) -> None:
    append(table, some(4))
    assert len(everything(source)) == 4
    shutil.rmtree(table)
    with pytest.raises(EnvironmentFault):
        source.refresh()
    assert source.fault() == "the envelopes table is not there"
    for query in (lambda: source.position(bytes(32)), lambda: source.select(StoreQuery(), None, 1)):
        with pytest.raises(EnvironmentFault):
            query()
    append(table, some(2, 10))
    assert {m.payload for m in everything(source)} == {b"10", b"11"}
    assert source.fault() is None


def test_a_table_that_was_indexed_before_a_restart_and_is_gone_after_it_is_a_fault(table: Path, tmp_path: Path) -> None:
    append(table, some(4))
    first = DeltaSource(str(table), tmp_path / "index.sqlite")
    everything(first)
    first.close()
    shutil.rmtree(table)
    second = DeltaSource(str(table), tmp_path / "index.sqlite")
    with pytest.raises(EnvironmentFault):
        second.refresh()
    second.close()


def test_a_damaged_file_is_a_fault_until_it_is_whole_again(table: Path, source: DeltaSource) -> None:
    append(table, some(4))
    (file,) = table.glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(bytes(len(whole)))
    for _ in range(2):
        with pytest.raises(EnvironmentFault, match="cannot be read"):
            source.refresh()
        assert source.fault() == "the envelopes table cannot be read"
    file.write_bytes(whole)
    assert len(everything(source)) == 4


def test_following_takes_up_new_files_by_itself(table: Path, source: DeltaSource) -> None:
    append(table, some(2))
    source.follow(0.01)
    until(lambda: source.fault() is None)
    append(table, some(2, 2))
    until(lambda: len(source.select(StoreQuery(), None, 10)) == 4)
    source.close()


def test_no_error_ends_the_following_of_the_table_and_no_query_is_answered_meanwhile(
    table: Path, source: DeltaSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store answered from what it had read before, for ever."""
    append(table, some(2))
    monkeypatch.setattr(source, "_index_files", fail_with(RuntimeError("unforeseen")))
    source.follow(0.01)
    until(lambda: source.fault() == "the envelopes table cannot be read")
    until(lambda: caplog.records)
    monkeypatch.undo()
    until(lambda: source.fault() is None)
    assert len(source.select(StoreQuery(), None, 10)) == 2
    source.close()
    assert [record.getMessage() for record in caplog.records] == ["the archive is not followed: unforeseen"]


def test_a_query_that_meets_the_end_leaves_no_index_open(
    table: Path, source: DeltaSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, some(1))
    source.refresh()
    (position,) = source.select(StoreQuery(), None, 10)
    load = source._load

    def meet_the_end(message_hashes: Sequence[bytes], **options: bool) -> dict[bytes, tuple[str, WakuMessage]]:
        monkeypatch.setattr(source, "_load", load)
        source.close()
        return load(message_hashes, **options)

    monkeypatch.setattr(source, "_load", meet_the_end)
    with pytest.raises(EnvironmentFault, match="closed"):
        source.load([position.message_hash])
    assert source._index is None


@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    group_rows=st.integers(1, 12),
    cache_bytes=st.sampled_from([1, 500, 10**9]),
    group_bytes=st.sampled_from([1, 10**9]),
    data=st.data(),
)
@settings(max_examples=examples(60), deadline=None)
def test_rows_are_read_by_their_numbers_whatever_the_row_groups_and_the_cache(
    sizes: list[int], group_rows: int, cache_bytes: int, group_bytes: int, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as name:
        for number, size in enumerate(sizes):
            values = pa.table({"value": [b"%d/%d" % (number, row) for row in range(size)], "other": range(size)})
            pq.write_table(values, f"{name}/{number}.parquet", row_group_size=group_rows)
        files = EnvelopeFiles(fs.SubTreeFileSystem(name, fs.LocalFileSystem()), cache_bytes, group_bytes)
        for _ in range(3):
            number = data.draw(st.integers(0, len(sizes) - 1))
            rows = data.draw(st.lists(st.integers(0, sizes[number] - 1), max_size=10))
            assert files.values(f"{number}.parquet", rows) == [b"%d/%d" % (number, row) for row in rows]


@pytest.mark.parametrize("is_repeated", [False, True])
def test_a_large_row_group_of_a_small_file_is_read_a_few_rows_at_a_time(
    tmp_path: Path, is_repeated: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros compress to a thousandth, and a repeated value is only once in the file."""
    values = [(0 if is_repeated else number).to_bytes(8) + bytes(10_000) for number in range(1_000)]
    pq.write_table(pa.table({"value": values}), tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    read: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def recording(file: pq.ParquetFile, rows: int, *more: Any, **options: Any) -> Any:
        read.append(rows)
        return iter_batches(file, rows, *more, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recording)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", None)
    files = EnvelopeFiles(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), group_bytes=5_000_000)
    assert files.values("a.parquet", [999, 7, 7]) == [values[999], values[7], values[7]]
    assert {*read} == {LONG_ROWS}
    assert files._kept_bytes == 0


def test_what_was_read_is_kept_within_its_bound(tmp_path: Path) -> None:
    for number in range(5):
        pq.write_table(pa.table({"value": [bytes(1_000)] * 10}), tmp_path / f"{number}.parquet")
    files = EnvelopeFiles(fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem()), cache_bytes=25_000)
    for number in range(5):
        files.values(f"{number}.parquet", [3])
    assert files._kept_bytes <= 25_000
    (tmp_path / "4.parquet").unlink()
    assert files.values("4.parquet", [1, 2]) == [bytes(1_000)] * 2, "the latest is still there"
    with pytest.raises(OSError):
        files.values("0.parquet.gone", [1])
