"""Measures a micro-batch of the ack job with many channels and with few: ``python -m bench.jobs.channels SPEC``.

``SPEC`` is JSON: run directory, cores, and pairs of cases. A case is a number of records per micro-batch, of channels,
and of messages already in their logs. The rows that the job reads are generated here, so nothing else runs meanwhile.
The two cases of a pair run in one session, their micro-batches alternating. Every micro-batch is a line of JSON.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.jobs.stages import pin_cores, settings_for
from bench.jobs.usage import cpu_seconds, files_below

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from reliable_channel.config import Settings

START_US = 1_767_225_600_000_000
PUBSUB_TOPIC = "/waku/2/rs/1/0"
PRELOADED = 20_000
"""Maximum number of rows of a micro-batch that only fills the logs."""
SENDERS = 3
PATIENCE_S = 600.0


@dataclass(frozen=True, slots=True)
class Case:
    """``records`` per micro-batch over ``channels``, each of which has already received ``log`` messages."""

    name: str
    records: int
    channels: int
    log: int


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch. ``checkpoint_bytes``: the size of all files that it wrote in the checkpoint, including state."""

    case: str
    number: int
    rows: int
    seconds: float
    cpu_s: float
    checkpoint_bytes: int


class CaseRows:
    """The rows of a case: channels in turn; every message names the previous two of its channel. A tick ends each
    micro-batch, as ingest writes it."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._sent = 0

    def rows(self, count: int) -> Iterator[dict[str, Any]]:
        for number in range(self._sent, self._sent + count):
            channel, index = number % self._case.channels, number // self._case.channels
            at_ms = START_US // 1000 + index * 1000
            yield message_row(number, channel, index, at_ms, f"{self._case.name} {channel}")
        self._sent += count
        yield {
            "kafka_topic": "bench",
            "kafka_partition": 0,
            "kafka_offset": self._sent - 1,
            "sub_order": 1_000_000,
            "row_kind": "tick",
            "event_time": at_ms * 1000,
        }


def message_row(offset: int, channel: int, index: int, at_ms: int, seed: str) -> dict[str, Any]:
    """Build the row of a channel's message number ``index`` at time ``at_ms``, which names the previous two. Another
    ``seed`` gives other ids."""

    def digest_of(number: int) -> bytes:
        return hashlib.sha256(f"{seed} {number}".encode()).digest()

    digest = digest_of(index)
    return {
        "kafka_topic": "bench",
        "kafka_partition": 0,
        "kafka_offset": offset,
        "sub_order": 0,
        "row_kind": "message",
        "event_time": at_ms * 1000,
        "pubsub_topic": PUBSUB_TOPIC,
        "content_topic": f"/bench/1/{channel}/proto",
        "channel_id": f"channel-{channel}",
        "family": "spec",
        "sender_id": f"sender-{index % SENDERS}",
        "sds_id": digest.hex(),
        "sds_kind": "content",
        "lamport_timestamp": at_ms,
        "causal_history": [
            {"sds_id": digest_of(earlier).hex(), "retrieval_hint": None, "sender_id": f"sender-{earlier % SENDERS}"}
            for earlier in range(max(index - 2, 0), index)
        ],
        "content_digest": digest,
        "content_bytes": 200,
        "envelope_hash": digest,
        "entire_message_hash": digest,
        "segment_kind": "bare",
        "sender_timestamp_ns": at_ms * 1_000_000,
        "id_verified": True,
    }


class Running:
    """The running ack job of one case."""

    def __init__(self, spark: Any, settings: Settings, case: Case, name: str) -> None:
        from reliable_channel.lake.create import create_tables
        from reliable_channel.pipeline.runner.queries import ACK, start

        self.case, self._settings, self._traffic = case, settings, CaseRows(case)
        self._reads = ACK.reads
        create_tables(settings.paths, ACK.tables)
        query = replace(ACK, name=name)  # Spark would run only one of two queries with the same name
        self._checkpoint = Path(settings.paths.checkpoint(name))
        self._files: dict[str, tuple[int, int]] = {}
        self._seen = -1
        self.query: StreamingQuery = start(spark, settings, query, once=False)

    def preload(self) -> None:
        """Fill the logs."""
        left = self.case.log * self.case.channels
        while left > 0:
            self.batch(min(left, PRELOADED))
            left -= PRELOADED

    def batch(self, rows: int) -> MicroBatch:
        """Give the job ``rows`` rows, and wait until it has written their results."""
        from reliable_channel.lake.append import append_rows
        from reliable_channel.lake.schema import as_arrow

        table: Any = self._reads
        given = as_arrow(list(self._traffic.rows(rows)), table)
        self._count_written()
        cpu_s = cpu_seconds()
        append_rows(self._settings.paths, table, given)
        progress = self._next()
        cpu_s = cpu_seconds() - cpu_s
        row_count = int(progress.numInputRows)
        if row_count < rows:
            raise AssertionError(f"{self.case.name}: a micro-batch of {row_count} rows, {rows} were given.")
        milliseconds = progress.durationMs["triggerExecution"]
        return MicroBatch(
            self.case.name, int(progress.batchId), rows, milliseconds / 1000, cpu_s, self._count_written()
        )

    def _next(self) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if (error := self.query.exception()) is not None:
                raise error
            for progress in self.query.recentProgress:
                if progress.batchId > self._seen and progress.numInputRows:
                    self._seen = progress.batchId
                    return progress
            time.sleep(0.05)
        raise TimeoutError(f"{self.case.name}: no micro-batch within {PATIENCE_S:.0f} s.")

    def _count_written(self) -> int:
        """The bytes of the checkpoint's files that are new or changed since the last call."""
        now = {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in files_below(self._checkpoint)}
        new = sum(size for name, (size, at) in now.items() if self._files.get(name) != (size, at))
        self._files = now
        return new


def main(arguments: list[str]) -> int:
    """Run every pair of cases, ``batches`` micro-batches each."""
    spec = json.loads(arguments[0])
    pin_cores(spec["cores"])
    from reliable_channel.runtime.spark import spark_session

    settings = settings_for(Path(spec["run_dir"]), "127.0.0.1:9", spec["cores"])
    with spark_session(settings, "bench") as spark:
        for which, pair in enumerate(spec["pairs"]):
            cases = [Case(**case) for case in pair]
            running = [
                Running(
                    spark, settings.with_run_dir(Path(spec["run_dir"]) / f"{which}-{number}"), case, f"ack-{number}"
                )
                for number, case in enumerate(cases)
            ]
            for each in running:
                each.preload()
            for _ in range(spec["batches"]):
                for each in running:
                    print(json.dumps(asdict(each.batch(each.case.records))), flush=True)
            for each in running:
                each.query.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
