"""Runs the measured process of :mod:`bench.verdicts`: rounds of verdicts over kept messages, with a few new ones before
each."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.jobs.stages import pin_cores, settings_for
from bench.jobs.usage import cpu_seconds
from reliable_channel.config import Settings
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    ACKS,
    CLOCK,
    DELIVERIES,
    LOST_DEPENDENCIES,
    SDS_MESSAGES,
    SIGHTINGS,
    SOURCE_GAPS,
    Table,
)

_START_US = 1_767_225_600_000_000
_PUBSUB_TOPIC = "/waku/2/rs/1/0"
_CHANNELS = 100
_COMMITS = 24
_NEW_S = 60


@dataclass(frozen=True, slots=True)
class Round:
    """One round of verdicts over ``kept`` messages. ``cpu_s``: of all processes of the bench; ``gap``: a bridge has an
    open gap."""

    kept: int
    gap: bool
    judged: int
    seconds: float
    cpu_s: float


class Kept:
    """Tables with ``kept`` messages of a day; every round adds ``new`` messages of a minute."""

    def __init__(self, settings: Settings, kept: int, new: int) -> None:
        self.settings, self.kept, self.new = settings, kept, new
        self.next, self.at_us, self.gap = 0, _START_US, False
        create_tables(settings.paths, (SDS_MESSAGES, DELIVERIES, ACKS, LOST_DEPENDENCIES, CLOCK))
        for _ in range(_COMMITS):
            self.append(kept // _COMMITS, 86_400 // _COMMITS)

    def append(self, count: int, seconds: int) -> None:
        """Append ``count`` messages spread over ``seconds``: one in a hundred is missing, and two participants
        acknowledge the others."""
        messages = [
            (self.next + number, self.at_us + (number + 1) * seconds * 1_000_000 // count) for number in range(count)
        ]
        self.next += count
        self.at_us = messages[-1][1]
        for table, rows in _evidence(messages):
            append_rows(self.settings.paths, table, as_arrow(rows, table))
        clock = {"kafka_topic": "bench", "kafka_partition": 0, "query_id": "bench", "batch_id": self.next}
        row = {**clock, "kind": "batch", "event_time": self.at_us, "next_offset": self.next}
        append_rows(self.settings.paths, CLOCK, as_arrow([row], CLOCK))

    def open_gap(self) -> None:
        """Say that two bridges saw all messages, and that one of them did not listen for an hour."""
        self.gap = True
        seen = {"source": "relay", "pubsub_topic": _PUBSUB_TOPIC, "seen_at": self.at_us}
        for bridge in ("north", "south"):
            rows = [{**seen, "vantage": bridge, "message_hash": _payload(number)} for number in range(self.next)]
            append_rows(self.settings.paths, SIGHTINGS, as_arrow(rows, SIGHTINGS))
        offsets = {"kafka_topic": "bench", "kafka_partition": -1, "first_offset": 0, "last_offset": 0}
        gap = {**offsets, "cause": "bridge_restart", "name": "north/gap", "vantage": "north", "status": "unfilled"}
        times = {"from_time": _START_US, "to_time": _START_US + 3_600_000_000, "ingest_time": self.at_us}
        append_rows(self.settings.paths, SOURCE_GAPS, as_arrow([{**gap, **times}], SOURCE_GAPS))

    def round(self, spark: Any) -> Round:
        """Append new messages and compute the verdicts."""
        from reliable_channel.pipeline.verdict import verdicts

        self.append(self.new, _NEW_S)
        started, cpu_s = time.perf_counter(), cpu_seconds()
        judged = verdicts.run(spark, self.settings)
        return Round(self.kept, self.gap, judged, time.perf_counter() - started, cpu_seconds() - cpu_s)


def _payload(number: int) -> bytes:
    return number.to_bytes(32, "big")


def _evidence(messages: list[tuple[int, int]]) -> Iterator[tuple[Table, list[dict[str, Any]]]]:
    came: list[dict[str, Any]] = []
    delivered, acks, lost = [], [], []
    for number, at_us in messages:
        channel = {
            "pubsub_topic": _PUBSUB_TOPIC,
            "content_topic": f"/bench/1/{number % _CHANNELS}/proto",
            "channel_id": f"channel {number % _CHANNELS}",
        }
        said = {**channel, "sds_id": f"{number * 0x9E3779B97F4A7C15 % (1 << 256):064x}", "event_time": at_us}
        said["sender_id"] = f"sender {number % 7}"
        if number % 100 == 0:
            lost.append({**said, "status": "lost", "needed_by": "x", "missing_since": at_us})
            continue
        record = {"kafka_topic": "bench", "kafka_partition": 0, "kafka_offset": number}
        payload = _payload(number)
        row = {**said, **record, "sds_kind": "content", "segment_kind": "bare", "entire_message_hash": payload}
        row["envelope_hash"] = payload
        row |= {"data_count": 1, "lamport_timestamp": at_us // 1000, "ingest_time": at_us}
        came.append(row)
        first = {"first_sds_id": said["sds_id"], "first_lamport_timestamp": at_us // 1000, "first_seen": at_us}
        delivered.append({**row, **first, "row_kind": "message", "late": False, "row_seq": number})
        acks += [{**said, "acknowledged_by": f"sender {(number + by) % 7}"} for by in (1, 2)]
    yield from ((SDS_MESSAGES, came), (DELIVERIES, delivered), (ACKS, acks), (LOST_DEPENDENCIES, lost))


def main(arguments: list[str]) -> int:
    """Run a round over everything for each number of kept messages, then ``rounds`` rounds alternately, and as many
    with an open gap after one in which it appears."""
    spec = json.loads(arguments[0])
    pin_cores(spec["cores"])
    from reliable_channel.runtime.spark import spark_session

    settings = settings_for(Path(spec["run_dir"]), "127.0.0.1:9", spec["cores"])
    with spark_session(settings, "bench") as spark:
        tables = [
            Kept(settings.with_run_dir(Path(spec["run_dir"]) / str(kept)), kept, spec["new"]) for kept in spec["kept"]
        ]
        for gap in (False, True):
            for each in tables if gap else ():
                each.open_gap()
            for _ in range(1 + spec["rounds"]):
                for each in tables:
                    print(json.dumps(asdict(each.round(spark))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
