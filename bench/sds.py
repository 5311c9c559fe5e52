"""Measures the cost of receiving in the SDS core (issue targets), its growth with the log, and the cost of a
snapshot."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from bench.registry import SIZES, STEP, Result, bench, python_step
from reliable_channel.core.sds import SdsChannel, SdsParameters
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage

START = 1_750_000_000_000
OUTSTANDING = 200
REPETITIONS = 3


def _messages(count: int, *, filters: bool, senders: int = 1, first: int = 0) -> list[SdsMessage]:
    """Return a conversation: every message names the previous two. Each filter is a different one of 2 000 ids, none of
    which is in the conversation."""
    made: list[SdsMessage] = []
    variants = _filters(16) if filters else [None]
    history: tuple[HistoryEntry, ...] = ()
    for number in range(first, first + count):
        message_id = f"{number:064x}"
        words = variants[number % len(variants)]
        made.append(
            SdsMessage(
                sender_id=f"sender-{number % senders}",
                message_id=message_id,
                channel_id="bench",
                lamport_timestamp=START + number,
                causal_history=history,
                bloom_filter=bytes(bytearray(words)) if words is not None else None,
                content=b"%d" % number,
            )
        )
        history = (*history[-1:], HistoryEntry(message_id, None, made[-1].sender_id))
    return made


def _filters(count: int) -> list[bytes]:
    filter_format = FilterFormat()
    made = []
    for variant in range(count):
        words = bytearray(filter_format.byte_count)
        filter_format.insert(words, (f"other-{variant}-{number}" for number in range(2_000)))
        made.append(bytes(words))
    return made


def _best(make: Callable[[], SdsChannel], messages: list[SdsMessage]) -> float:
    """The seconds for receiving ``messages``, the best of several runs on fresh channels."""
    best = float("inf")
    for _ in range(SIZES.count_repetitions(REPETITIONS)):
        channel = make()
        receive = channel.receive
        now = messages[-1].lamport_timestamp or START
        started = time.process_time()
        for message in messages:
            receive(message, now)
        best = min(best, time.process_time() - started)
    return best


def _participant(outstanding: int) -> SdsChannel:
    channel = SdsChannel("bench", "me", SdsParameters(max_log_entries=60_000))
    channel.tick(START - 1_000)
    for number in range(outstanding):
        channel.send(b"mine %d" % number, START - 1_000)
    return channel


def _observer(outstanding: int) -> SdsChannel:
    return SdsChannel("bench", None, SdsParameters(max_log_entries=60_000, max_tracked=outstanding))


RECEIVED_STEPS = {True: 120.0, False: 50.0}
"""Targets: steps of plain Python for a message with and without a filter."""


@bench
def receive() -> Iterator[Result]:
    """Measure messages per second of CPU time on one core, and the cost of each in steps of plain Python."""
    for filters, count, tracked in (
        (True, SIZES.scale_count(4_000), OUTSTANDING),
        (False, SIZES.scale_count(20_000), 1_000),
    ):
        what = "18 752-byte filter" if filters else "no filters"
        for label, make, senders in (
            (f"receive, {what}, {OUTSTANDING} outstanding", lambda: _participant(OUTSTANDING), 1),
            (f"receive as observer of 3 senders, {what}", lambda tracked=tracked: _observer(tracked), 3),
        ):
            seconds = _best(make, _messages(count, filters=filters, senders=senders)) / count
            yield Result(label, 1 / seconds, "messages/s")
            steps = seconds / python_step()
            yield Result(f"{label}: cost", steps, "steps", RECEIVED_STEPS[filters], True, STEP)


@bench
def growth() -> Iterator[Result]:
    """Compare the cost of a message with 50 000 entries in the log and with 1 000; the messages themselves are equally
    new."""
    short, long = SIZES.scale_count(1_000), SIZES.scale_count(50_000)
    seconds = {short: float("inf"), long: float("inf")}
    now = START + 100_000
    for _ in range(SIZES.count_repetitions(REPETITIONS)):
        for entries in seconds:
            channel = _participant(0)
            for message in _messages(entries, filters=False):
                channel.receive(message, now)
            fresh = _messages(SIZES.scale_count(5_000), filters=False, first=entries)
            started = time.process_time()
            for message in fresh:
                channel.receive(message, now)
            seconds[entries] = min(seconds[entries], time.process_time() - started)
    ratio = seconds[long] / seconds[short]
    yield Result(f"receive, {long} log entries against {short}", ratio, "ratio", 1.2, True, "a fiftieth of the log")


@bench
def snapshot() -> Iterator[Result]:
    """Measure Spark's cost of each access to a channel: restore, one message, snapshot."""
    sizes = (SIZES.scale_count(1_000, 10), SIZES.scale_count(10_000, 100))
    messages = _messages(sizes[-1] + 1, filters=False, senders=3)
    for entries in sizes:
        channel = SdsChannel("bench", None)
        for message in messages[:entries]:
            channel.receive(message, START + 20_000)
        blob = channel.to_bytes()
        label = f"{entries} log entries"
        yield Result(f"snapshot size, {label}", len(blob) / entries, "kB per 1 000 entries")
        seconds = {"restore": 9.0, "write after a restore and one message": 9.0}
        for _ in range(SIZES.count_repetitions(5)):
            started = time.process_time()
            restored = SdsChannel.from_bytes(blob)
            seconds["restore"] = min(seconds["restore"], time.process_time() - started)
            restored.receive(messages[entries], START + 20_000)
            started = time.process_time()
            restored.to_bytes()
            name = "write after a restore and one message"
            seconds[name] = min(seconds[name], time.process_time() - started)
        for name, spent in seconds.items():
            yield Result(f"snapshot {name}, {label}", spent * 1_000_000 / entries, "ms per 1 000 entries")
