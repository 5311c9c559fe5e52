"""Measures the ack job with many channels with logs, accessed at random at a steady rate: ``python -m bench.jobs.held
SPEC``.

``SPEC`` is JSON: run directory, cores, channels, messages in the log of each, rows per second, seconds to warm up,
seconds. The first micro-batch writes the logs directly into the state, because ten million rows would take an hour:
every channel gets the state of one that received ``log`` rows. Prints a line of JSON for every tenth of the duration
(memory of all processes and size of the checkpoint), then one with the latency of every second's rows, and one with the
first micro-batch after a restart.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.jobs.channels import PUBSUB_TOPIC, START_US, message_row
from bench.jobs.stages import pin_cores, settings_for
from bench.jobs.usage import cpu_seconds, files_below, memory_mb

if TYPE_CHECKING:
    import pandas as pd

    from reliable_channel.pipeline.ack.buckets import StoredBucket, Update
    from reliable_channel.pipeline.ack.channel_state import Rules

PATIENCE_S = 1_200.0
LOOKS = 10
SEED = 1
STEP_MS = 1_000
"""The time (ms) between two messages of a log."""


def filling(update: Update, rules: Rules, channels: dict[int, list[int]], texts: Sequence[str]) -> Update:
    """Wrap ``update`` so that before its first rows it gives each channel of the bucket the state after the rows
    ``texts``."""
    from reliable_channel.pipeline.ack.channel_state import Channels
    from reliable_channel.pipeline.ack.records import row_of
    from reliable_channel.pipeline.delta import running

    def fill(key: tuple[Any, ...], frames: Iterator[pd.DataFrame], state: StoredBucket) -> Iterator[pd.DataFrame]:
        number = int(key[0])
        if state.head() is None:
            now = running()
            bucket = Channels(state, number, lambda _: rules, "" if now is None else now[0])
            first = rules.observer(key_of(0), None)
            for text in texts:
                first.take(row_of(json.loads(text), None))
            filled = first.to_bytes()
            for channel in channels[number]:
                live = bucket.load(key_of(channel))
                live.observer = rules.observer(key_of(channel), filled)
                bucket.store(live, [(text, None) for text in texts])
            bucket.close()
        yield from update(key, frames, state)

    return fill


def key_of(channel: int) -> tuple[str, str, str, str]:
    """Return the key of a channel as in rows. The channel id is the same in all, so that their states have the same
    bytes."""
    return (PUBSUB_TOPIC, f"/bench/1/{channel}/proto", "channel", "spec")


def row(offset: int, channel: int, index: int, at_ms: int) -> dict[str, Any]:
    """Build a message of a channel, with the same ids in every channel."""
    return message_row(offset, channel, index, at_ms, "held") | {"channel_id": "channel"}


def as_text(message: dict[str, Any]) -> str:
    """Encode a row as the job receives it."""
    from reliable_channel.pipeline.ack.records import InputRow

    fields = {name: message[name] for name in InputRow._fields if message.get(name) is not None}
    fields |= {name: base64.b64encode(value).decode() for name, value in fields.items() if isinstance(value, bytes)}
    history = [{name: value for name, value in each.items() if value} for each in message["causal_history"]]
    return json.dumps(fields | {"event_us": message["event_time"], "sub_order": 0, "causal_history": history})


class RandomRows:
    """Generates rows of random channels, ``rate`` per call."""

    def __init__(self, settings: Any, table: Any, channels: int, log: int, rate: int) -> None:
        self._settings, self._table = settings, table
        self._chosen = random.Random(SEED)
        self._channels, self._rate = channels, rate
        self._index: defaultdict[int, int] = defaultdict(lambda: log)
        self._now_ms = START_US // 1000 + log * STEP_MS
        self.sent = 0
        self.at: list[tuple[int, float]] = []
        """For each call: rows sent so far, and when (Unix s)."""

    def __call__(self) -> None:
        from reliable_channel.lake.append import append_rows
        from reliable_channel.lake.schema import as_arrow

        rows: list[dict[str, Any]] = []
        self._now_ms += STEP_MS
        for channel in self._chosen.sample(range(self._channels), self._rate):
            rows.append(row(self.sent + len(rows), channel, self._index[channel], self._now_ms))
            self._index[channel] += 1
        given = as_arrow(rows, self._table)
        self.sent += len(rows)
        self.at.append((self.sent, time.time()))
        append_rows(self._settings.paths, self._table, given)


class DoneRows:
    """Records the micro-batches of a query: rows processed so far, and when (Unix s)."""

    def __init__(self) -> None:
        self.at: list[tuple[int, float]] = [(0, 0.0)]
        self._seen = -1

    def look(self, query: Any) -> None:
        """Record the micro-batches that ended since the last call. Raises the query's error if it has failed."""
        if (error := query.exception()) is not None:
            raise error
        for progress in query.recentProgress:
            if progress.batchId > self._seen and progress.numInputRows:
                self._seen = progress.batchId
                ended = dt.datetime.fromisoformat(progress.timestamp).timestamp()
                ended += progress.durationMs["triggerExecution"] / 1000
                self.at.append((self.at[-1][0] + progress.numInputRows, ended))

    def wait(self, query: Any, rows: int) -> None:
        """Wait until ``rows`` rows are done."""
        deadline = time.monotonic() + PATIENCE_S
        while self.at[-1][0] < rows:
            self.look(query)
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.at[-1][0]} of {rows} rows within {PATIENCE_S:.0f} s.")
            time.sleep(0.1)


def latencies(sent: Sequence[tuple[int, float]], done: Sequence[tuple[int, float]], since: float) -> list[float]:
    """Seconds from sending to the end of the micro-batch, for every call after ``since``."""
    latencies = []
    for rows, at in sent:
        if at >= since:
            latencies.append(next(ended for row_count, ended in done if row_count >= rows) - at)
    return latencies


def size_of(directory: Path) -> int:
    """The bytes of a directory's files."""
    return sum(stat.st_size for _, stat in files_below(directory))


def main(arguments: list[str]) -> int:
    """Fill the state, warm up, measure, and measure a restart."""
    spec = json.loads(arguments[0])
    pin_cores(spec["cores"])
    from pyspark.sql import functions as F  # noqa: N812

    from reliable_channel.lake.create import create_tables
    from reliable_channel.pipeline.ack import stream
    from reliable_channel.pipeline.ack.channel_state import Rules
    from reliable_channel.pipeline.runner.queries import ACK, start
    from reliable_channel.runtime.spark import spark_session

    settings = settings_for(Path(spec["run_dir"]), "127.0.0.1:9", spec["cores"])
    channels, log, rate = spec["channels"], spec["log"], spec["rate"]
    values = settings.channels.participant_id, settings.sds, settings.pipeline.channel_expiry_ms
    rules = Rules(*values)
    texts = [as_text(row(n, 0, n, START_US // 1000 + n * STEP_MS)) for n in range(log)]
    checkpoint = Path(settings.paths.checkpoint(ACK.name))
    with spark_session(settings, "bench") as spark:
        by_bucket: dict[int, list[int]] = defaultdict(list)
        key = (F.lit(PUBSUB_TOPIC), F.format_string("/bench/1/%d/proto", "id"), F.lit("channel"))
        bucket = stream.bucket_of(spark, *key)
        for row_of_range in spark.range(channels).select("id", bucket.alias("bucket")).collect():
            by_bucket[row_of_range.bucket].append(row_of_range.id)
        filled = filling(stream.stateful(*values), rules, dict(by_bucket), texts)
        query = replace(ACK, transform=lambda s: stream.acknowledge(s, filled))
        table: Any = ACK.reads
        create_tables(settings.paths, ACK.tables)
        feed, done = RandomRows(settings, table, channels, log, rate), DoneRows()
        started = time.monotonic()
        running = start(spark, settings, query, once=False)
        while feed.sent < 10 * len(by_bucket):  # every bucket is touched
            feed()
        done.wait(running, feed.sent)
        print(json.dumps({"filled_s": time.monotonic() - started, "state_bytes": size_of(checkpoint)}), flush=True)

        def steadily(seconds: float) -> None:
            begin = time.monotonic()
            for second in range(int(seconds)):
                time.sleep(max(0.0, begin + second - time.monotonic()))
                feed()
                done.look(running)

        steadily(spec["warm_s"])
        since = time.time()
        cpu_s = -cpu_seconds()
        for _ in range(LOOKS):
            steadily(spec["seconds"] / LOOKS)
            look = {
                "memory_mb": memory_mb(),
                "checkpoint_bytes": size_of(checkpoint),
                "behind": feed.sent - done.at[-1][0],
            }
            print(json.dumps(look), flush=True)
        done.wait(running, feed.sent)
        cpu_s += cpu_seconds()
        print(json.dumps({"latency_s": latencies(feed.at, done.at, since), "cpu_s": cpu_s}), flush=True)
        running.stop()
        feed()
        again = DoneRows()
        started = time.monotonic()
        running = start(spark, settings, query, once=False)
        again.wait(running, rate)
        print(json.dumps({"restarted_s": time.monotonic() - started}), flush=True)
        running.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
