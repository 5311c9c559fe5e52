"""After a restart the quota gate counts what was admitted before, and nothing else, from the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reliable_channel.config import ChannelsSettings, PathSettings, Quota, QuotaSettings
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import QUARANTINE, SDS_MESSAGES
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.ingest.admission import QuotaGate
from reliable_channel.pipeline.ingest.quotas import Candidate, Cost

WINDOW_US = 600_000_000
NOW_US = 1_767_225_600_000_000
PLACE = ("t", 0)
SENDER = ("p", "c", "talk", "alice")
QUOTAS = QuotaSettings(sender=Quota(messages=3, bytes=10**9, segments=10**9, named_ids=10**9), window_ms=600_000)


def message(offset: int, **other: Any) -> dict[str, Any]:
    coordinates = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": offset, "event_time": NOW_US}
    names = {"pubsub_topic": "p", "content_topic": "c", "channel_id": "talk", "sender_id": "alice"}
    return {**coordinates, **names, "ingest_time": NOW_US, "sds_kind": "content", "sds_id": f"{offset}", **other}


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    paths = PathSettings(run_dir=str(tmp_path))
    create_tables(paths, (SDS_MESSAGES, QUARANTINE))
    return paths


def write(paths: PathSettings, *rows: dict[str, Any], requeued: tuple[int, ...] = ()) -> None:
    append_rows(paths, SDS_MESSAGES, as_arrow(rows, SDS_MESSAGES))
    settled = [message(offset, disposition="requeued", stage="quota", reason="over_quota") for offset in requeued]
    append_rows(paths, QUARANTINE, as_arrow(settled, QUARANTINE))


def left(gate: QuotaGate) -> int:
    """How many messages of the sender are still within its quota."""
    asking = [Candidate(PLACE, 100 + n, NOW_US // WINDOW_US, SENDER, Cost(1)) for n in range(5)]
    groups = [(PLACE, NOW_US // WINDOW_US, SENDER, Cost(5))]
    return 5 - len(gate.find_refused(groups, lambda _: asking))


@pytest.mark.parametrize(
    ("rows", "requeued", "expected"),
    [
        ([], (), 3),
        ([message(1), message(2)], (), 1),
        ([message(1), message(10)], (), 2),  # a replay has written the second one already
        ([message(1), message(2)], (2,), 2),
        ([message(1), message(2, sds_kind="tick"), message(3, kafka_partition=1)], (), 2),
        ([message(1), message(2, event_time=NOW_US - WINDOW_US), message(3, sender_id="bob")], (), 2),
    ],
)
def test_a_restart_counts_what_was_admitted_in_the_present_window(
    paths: PathSettings, rows: list[dict[str, Any]], requeued: tuple[int, ...], expected: int
) -> None:
    write(paths, *rows, requeued=requeued)
    gate = QuotaGate(QUOTAS, ChannelsSettings())
    gate.restore(paths, {PLACE: Progress(NOW_US, 10)})
    assert left(gate) == expected


def test_before_the_first_record_nothing_is_counted(paths: PathSettings) -> None:
    gate = QuotaGate(QUOTAS, ChannelsSettings())
    gate.restore(paths, {})
    assert left(gate) == 3


def test_late_records_find_all_that_was_admitted_in_their_windows(paths: PathSettings) -> None:
    write(paths, message(1), message(10), message(2, event_time=NOW_US - 5 * WINDOW_US))
    gate = QuotaGate(QUOTAS, ChannelsSettings())
    gate.restore_for(paths, [(PLACE, NOW_US // WINDOW_US, SENDER, Cost(1))])
    assert left(gate) == 1
