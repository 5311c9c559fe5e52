"""What a task of reassembly looks up in tables, against the age of these tables: it must not grow with them.

No Spark: the functions that tasks call, over tables that delta-rs wrote, in a process that has run for a while and in a
new one (CPU time, since the machine is shared). The older tables have eight times the micro-batches, and as many within
the memory of what was rebuilt."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator

from bench.registry import SIZES, Result, bench, best_of
from reliable_channel.config import PathSettings
from reliable_channel.lake.append import BatchSink, append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import REASSEMBLED_MESSAGES, TIMERS
from reliable_channel.pipeline.reassembly.memory import CompletedSends
from reliable_channel.pipeline.timers import TimerChange, TimerLog, Timers, record

_PLACE = ("waku.envelopes", 0)
_START_MS = 1_767_225_600_000
_PER_BATCH = 50
_STEP_MS = 60_000
_AGE = 8
_MEASURED = 5


@bench
def open_timers() -> Iterator[Result]:
    """What a task asks of the timers in one micro-batch of 4 000 records, where many sets or channels are open."""
    for count in (10_000, 100_000):
        timers = Timers()
        for number in range(count):
            timers.apply(TimerChange(f"{number:064x}", _PLACE, number))

        def ask(timers: Timers = timers, count: int = count) -> int:
            asked = sum(timers.is_open(f"{number:064x}") for number in range(0, count, count // 4_000))
            return asked + len([*timers.due(_PLACE, 100)])

        took = best_of(ask, seconds=0.0, repetitions=3, clock=time.thread_time) * 1_000
        yield Result(f"asking {count} timers for 4 000 keys and what is due", took, "ms", 20.0, lower_is_better=True)


@bench
def lookups() -> Iterator[Result]:
    """Both look-ups of a micro-batch, warm and in a new process, for a young and an old pair of tables."""
    young = 10 if SIZES.quick else 40
    with tempfile.TemporaryDirectory() as run_dir:
        paths = PathSettings(run_dir=run_dir)
        create_tables(paths, (TIMERS,))
        create_tables(paths, (REASSEMBLED_MESSAGES,))
        times = {}
        written = 0
        for batches in (young, young * _AGE):
            for batch in range(written, batches):
                _write(paths, batch)
            times[batches] = _measured(paths, batches)
            written = batches + _MEASURED
    for what in (
        "open keys, read on",
        "open keys, a new worker",
        "rebuilt before, read on",
        "rebuilt before, a new worker",
    ):
        early, late = times[young][what], times[young * _AGE][what]
        yield Result(f"{what}: after {young * _AGE} micro-batches", late * 1_000, "ms")
        steady = "read on" in what
        yield Result(
            f"{what}: {_AGE} × the history / 1 ×", late / early, "ratio", 2.0 if steady else None, lower_is_better=True
        )


def _write(paths: PathSettings, batch: int) -> None:
    """One micro-batch: some messages, and some keys opened and closed."""
    hashes = [os.urandom(32) for _ in range(_PER_BATCH)]
    rows = [
        {
            "kafka_topic": _PLACE[0],
            "kafka_partition": _PLACE[1],
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
    opened = [TimerChange(f"{batch}/{number}", _PLACE, batch + 1) for number in range(_PER_BATCH)]
    closed = [TimerChange(f"{batch - 2}/{number}", _PLACE, None) for number in range(_PER_BATCH)] if batch > 1 else []
    record(BatchSink(paths, "query", batch), "reassembly", opened + closed)


def _measured(paths: PathSettings, batches: int) -> dict[str, float]:
    """CPU seconds of the look-ups of the next micro-batches; each writes, which is not counted."""
    wanted = [os.urandom(32) for _ in range(2_000)]

    def since(batch: int) -> int:
        return (_START_MS + (batch - 15) * _STEP_MS) * 1_000

    log, rebuilt = TimerLog(paths, "reassembly", "query"), CompletedSends(paths)
    found = {
        "open keys, a new worker": _cpu(lambda: log.before(batches)),
        "rebuilt before, a new worker": _cpu(lambda: rebuilt.rows(wanted, since(batches))),
    }
    keys, memory = [], []
    for batch in range(batches, batches + _MEASURED):
        _write(paths, batch)
        keys.append(_cpu(lambda batch=batch: log.before(batch + 1)))  # type: ignore[misc]
        memory.append(_cpu(lambda batch=batch: rebuilt.rows(wanted, since(batch))))  # type: ignore[misc]
    return found | {"open keys, read on": min(keys), "rebuilt before, read on": min(memory)}


def _cpu(action: Callable[[], object]) -> float:
    start = time.process_time()
    action()
    return time.process_time() - start
