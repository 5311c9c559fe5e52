"""Measures the cost of keyed state with many open entries (segment sets, requests for missing messages), and of a
reassembly task's table look-ups as the tables age: the cost must not grow with them.

Without Spark: it calls the functions of the tasks over tables written by delta-rs, with an index of the files and
without one (CPU time, since the machine is shared). The older tables have eight times the micro-batches, but as many
within the memory of rebuilt messages."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from bench.registry import SIZES, STEP, Result, bench, best_of, cpu_of, python_step
from reliable_channel.config import PathSettings, Settings, load
from reliable_channel.core.segmentation import MessageCompleted, Reassembler, SegmentationConfig, SetExpired, split
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.segment import Segment, encode_segment
from reliable_channel.evidence.requests import MAX_REQUESTS, find_open_requests
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.open_hashes import HashDue, OpenHashes, read_open_hashes
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import REASSEMBLED_MESSAGES, REFETCH_REQUESTS, SDS_MESSAGES, STORE_PRESENCE
from reliable_channel.pipeline.gc_paused import gc_paused
from reliable_channel.pipeline.reassembly.memory import read_completed
from reliable_channel.pipeline.reassembly.sets import HashSets, SegmentRow

_PARTITION = ("waku.envelopes", 0)
_START_MS = 1_767_225_600_000
_PER_BATCH = 50
_STEP_MS = 60_000
_AGE = 8
OPEN_STEPS, REFETCH = 2.0, 12.0
"""Targets: steps of plain Python for each open hash; a refetch round with ten times as many open requests."""
_MEASURED = 5


@bench
def open_hashes() -> Iterator[Result]:
    """Measure what a micro-batch of 4 000 records pays for the file of open hashes: a task reads it and looks its own
    hashes up, and the driver changes 1 000 and writes it."""
    for count in (SIZES.scale_count(10_000), SIZES.scale_count(100_000)):
        hashes = [os.urandom(32) for _ in range(count)]
        with tempfile.TemporaryDirectory() as run_dir:
            paths = PathSettings(run_dir=run_dir)
            OpenHashes().apply(_due(hashes)).write(paths, 0)

            def ask(paths: PathSettings = paths, hashes: list[bytes] = hashes) -> int:
                open_hashes = read_open_hashes(paths, 0)
                return len(open_hashes.select_open(hashes[:2_000] + _OTHERS)) + len(open_hashes.due(_PARTITION, 100))

            def change(paths: PathSettings = paths, hashes: list[bytes] = hashes) -> None:
                read_open_hashes(paths, 0).apply(_due(hashes[:1_000])).write(paths, 1)

            for what, action in (("a task asks", ask), ("the driver writes", change)):
                took = best_of(action, seconds=0.0, repetitions=3, clock=time.process_time) / python_step()
                yield Result(f"{count} open hashes: {what}", took / count, "steps a hash", OPEN_STEPS, True, STEP)


_OTHERS = [number.to_bytes(32, "big") for number in range(2_000)]


def _due(hashes: list[bytes]) -> list[HashDue]:
    return [HashDue(hash_, [(*_PARTITION, number)]) for number, hash_ in enumerate(hashes)]


_SETS = SegmentationConfig(segment_size_bytes=64, max_open_sets=10**6, max_open_sets_per_sender=10**6)
_COMPLETED = 10
"""One in this many open sets is completed; the others expire."""


@bench
def open_sets() -> Iterator[Result]:
    """Measure opening, completing and expiring a set of two segments with few and with many open sets."""
    short, long = SIZES.scale_count(1_000, 10), SIZES.scale_count(10_000, 100)
    few, many = _sets(short), _sets(long)
    for what, unit in (("opening", "µs"), ("completing", "µs"), ("expiring", "µs"), ("state", "bytes")):
        yield Result(f"a set among {long} open ones: {what}", many[what], unit)
        yield Result(f"{what}: {long} / {short} open", many[what] / few[what], "ratio", 1.5, True, "a tenth as many")


@bench
def overdue_sets() -> Iterator[Result]:
    """Measure what the pipeline keeps of a set with one of three segments of 100 KiB, until it is given up: each report
    writes the state of the set again."""
    config, cpu, state, written, reports = SegmentationConfig(), 0.0, 0, 0, 0
    overdue = SIZES.scale_count(_OVERDUE)
    for number in range(overdue):
        content = encode_segment(Segment(keccak256(number.to_bytes(8, "big")), 0, 3, None, False, os.urandom(102_400)))
        at_us, sender = _START_MS * 1000, f"sender {number}"
        row = SegmentRow(
            *_PARTITION, number, at_us, "p", "c", "talk", "spec", sender, f"{number:064x}", number, "v0.1", content
        )
        sets = HashSets(config)
        sets.add(row)
        blob = sets.to_bytes()
        state += len(blob)
        while blob:
            written += len(blob)
            begin = time.thread_time()
            sets = HashSets.from_bytes(blob, config)
            reports += len(sets.tick(_PARTITION, number, sets.dues()[_PARTITION]))
            blob = sets.to_bytes()
            cpu += time.thread_time() - begin
    yield Result("10 000 open sets of a segment of 100 KiB: state", state / overdue * 10_000 / 1e6, "MB")
    yield Result("… reports of a set until it is given up", reports / overdue, "rows")
    yield Result("… CPU time of a report", cpu / reports * 1_000_000, "µs")
    yield Result("… written in their whole life", written / overdue * 10_000 / 1e9, "GB")


_OVERDUE = 500


_Send = tuple[list[Any], tuple[str, ...]]


def _sets(count: int) -> dict[str, float]:
    """The µs of CPU time and bytes of state per set; the best of three."""
    sends: list[_Send] = [
        (split(number.to_bytes(8, "big") + bytes(100), _SETS), ("/waku/2/rs/2/1", "/a", "c", f"sender {number % 20}"))
        for number in range(count)
    ]
    runs = [_life_of(sends) for _ in range(SIZES.count_repetitions(3))]
    return {what: min(run[what] for run in runs) for what in runs[0]}


def _life_of(sends: list[_Send]) -> dict[str, float]:
    held, some = Reassembler(_SETS), sends[::_COMPLETED]
    events: list[object] = []
    with gc_paused():  # as in tasks
        opening = cpu_of(lambda: _add(held, 0, sends))
        state = len(held.to_bytes())
        completing = cpu_of(lambda: events.extend(_add(held, 1, some)))
        expiring = cpu_of(lambda: events.extend(held.expire(10**9)))
    assert sum(isinstance(event, MessageCompleted) for event in events) == len(some)
    left = len(sends) - len(some)
    assert sum(isinstance(event, SetExpired) for event in events) == left
    micros = {"opening": opening / len(sends), "completing": completing / len(some), "expiring": expiring / left}
    return {what: seconds * 1_000_000 for what, seconds in micros.items()} | {"state": state / len(sends)}


def _add(held: Reassembler, index: int, sends: list[_Send]) -> list[object]:
    """Add one segment of each send; returns the events."""
    return [
        event
        for number, (segments, scope) in enumerate(sends)
        for event in held.add(segments[index], 0, scope=scope, sds_id=f"{number}/{index}", lamport=number + index)
    ]


@bench
def open_refetch_requests() -> Iterator[Result]:
    """Measure how a refetch round selects its requests, with few and with many open requests."""
    few, many = SIZES.scale_count(10_000), SIZES.scale_count(100_000)
    short, long = _refetch_round(few), _refetch_round(many)
    yield Result(f"refetch: what is to be asked for among {many} open requests", long, "s")
    yield Result(f"refetch: {many} / {few} open", long / short, "ratio", REFETCH, True, "a tenth as many")


def _refetch_round(count: int) -> float:
    """The CPU seconds of selecting the requests."""
    with tempfile.TemporaryDirectory() as run_dir:
        settings = load("local", paths={"run_dir": run_dir})
        _request(settings, count)
        return best_of(lambda: _ask_all(settings, count), seconds=0.0, repetitions=3, clock=time.process_time)


def _request(settings: Settings, count: int) -> None:
    """Write ``count`` missing messages, each requested twice, and as many that arrived."""
    create_tables(settings.paths, (REFETCH_REQUESTS, SDS_MESSAGES))
    channel = {"pubsub_topic": "/waku/2/rs/2/1", "content_topic": "/app/1/chat/proto", "event_time": _START_MS * 1_000}
    ids = [f"{number * 0x9E3779B97F4A7C15 % (1 << 256):064x}" for number in range(2 * count)]
    rows = [
        {**channel, "channel_id": f"{number % 100}", "sds_id": sds_id, "attempt": attempt}
        | {"retrieval_hint": number.to_bytes(32, "big")}
        for attempt in (1, 2)
        for number, sds_id in enumerate(ids[:count])
    ]
    append_rows(settings.paths, REFETCH_REQUESTS, as_arrow(rows, REFETCH_REQUESTS))
    record = {"kafka_topic": _PARTITION[0], "kafka_partition": _PARTITION[1]}
    came = [
        {**channel, **record, "kafka_offset": number, "channel_id": f"{number % 100}", "sds_id": sds_id}
        for number, sds_id in enumerate(ids[count:])
    ]
    append_rows(settings.paths, SDS_MESSAGES, as_arrow(came, SDS_MESSAGES))


def _ask_all(settings: Settings, count: int) -> None:
    assert len(find_open_requests(settings, as_arrow([], STORE_PRESENCE))) == min(count, MAX_REQUESTS)


@bench
def lookups() -> Iterator[Result]:
    """Measure the look-up of a micro-batch, with an index and without one, for a young and an old table."""
    young = SIZES.scale_count(40, 3)
    with tempfile.TemporaryDirectory() as run_dir:
        paths = PathSettings(run_dir=run_dir)
        create_tables(paths, (REASSEMBLED_MESSAGES,))
        times = {}
        written = 0
        for batches in (young, young * _AGE):
            for batch in range(written, batches):
                _write(paths, batch)
            times[batches] = _measure(paths, batches)
            written = batches + _MEASURED
    for what in ("rebuilt before, read on", "rebuilt before, a new index"):
        early, late = times[young][what], times[young * _AGE][what]
        yield Result(f"{what}: after {young * _AGE} micro-batches", late * 1_000, "ms")
        target = 2.0 if "read on" in what else None
        yield Result(f"{what}: {_AGE} × the history / 1 ×", late / early, "ratio", target, True, "an eighth as old")


def _write(paths: PathSettings, batch: int) -> None:
    """Write the messages of one micro-batch."""
    hashes = [os.urandom(32) for _ in range(_PER_BATCH)]
    rows = [
        {
            "kafka_topic": _PARTITION[0],
            "kafka_partition": _PARTITION[1],
            "kafka_offset": batch * _PER_BATCH + number,
            "event_time": (_START_MS + batch * _STEP_MS) * 1_000,
            "pubsub_topic": "/waku/2/rs/2/1",
            "content_topic": "/app/1/chat/proto",
            "channel_id": "talk",
            "sender_id": "alice",
            "entire_message_hash": hash_,
            "sds_ids": [os.urandom(32).hex() for _ in range(4)],
        }
        for number, hash_ in enumerate(hashes)
    ]
    append_rows(paths, REASSEMBLED_MESSAGES, as_arrow(rows, REASSEMBLED_MESSAGES))


def _measure(paths: PathSettings, batches: int) -> dict[str, float]:
    """The CPU seconds of the look-ups of the next micro-batches; their writes are not counted."""
    wanted = [os.urandom(32) for _ in range(2_000)]

    def since(batch: int) -> int:
        return (_START_MS + (batch - 15) * _STEP_MS) * 1_000

    seconds = {
        "rebuilt before, a new index": cpu_of(lambda: read_completed(paths, wanted, since(batches), paths.run_dir))
    }
    memory = []
    for batch in range(batches, batches + _MEASURED):
        _write(paths, batch)
        memory.append(cpu_of(lambda batch=batch: read_completed(paths, wanted, since(batch), paths.run_dir)))  # type: ignore[misc]
    return seconds | {"rebuilt before, read on": min(memory)}
