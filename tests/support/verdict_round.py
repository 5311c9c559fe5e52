"""Rows of evidence about a channel ``c``, and a first round of verdicts over such rows. The round needs no Spark,
because all of it is new; that Spark finds the same is in tests/spark/test_verdict_rounds.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reliable_channel.config import Settings
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.verdict import verdicts

BEGIN_MS = 1_767_225_600_000
CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/reliable-channel/1/gap/proto", "channel_id": "c"}
GAP = (20, 50)
"""Seconds after the beginning at which nobody listened."""


def at(seconds: float) -> int:
    """Microseconds since 1970, as the tables have them."""
    return int((BEGIN_MS / 1000 + seconds) * 1_000_000)


def said(number: int, sds_id: str, sender: str, seconds: float, history: tuple[str, ...], late_s: float = 0) -> Any:
    """A message that came, ``late_s`` after it was sent."""
    return {
        **CHANNEL,
        "kafka_topic": "waku.envelopes",
        "kafka_partition": 0,
        "kafka_offset": number,
        "event_time": at(seconds + late_s),
        "ingest_time": at(seconds + late_s),
        "sender_id": sender,
        "sds_id": sds_id,
        "sds_kind": "content",
        "segment_kind": "bare",
        "lamport_timestamp": BEGIN_MS + int(seconds * 1000),
        "causal_history": [{"sds_id": one, "retrieval_hint": None, "sender_id": sender} for one in history],
    }


def named(sds_id: str, needed_by: str, seconds: float) -> dict[str, Any]:
    """A dependency that never came."""
    times = {"missing_since": at(seconds), "event_time": at(seconds + 60)}
    return {**CHANNEL, "sds_id": sds_id, "status": "lost", "needed_by": needed_by, **times}


def make_gap(**columns: Any) -> dict[str, Any]:
    """What the bridge *north* did not hear while it was restarted; ``columns`` besides."""
    return {
        "kafka_topic": "waku.envelopes",
        "kafka_partition": -1,
        "first_offset": 0,
        "last_offset": 0,
        "cause": "bridge_restart",
        "name": "north/gap",
        "from_time": at(GAP[0]),
        "to_time": at(GAP[1]),
        "ingest_time": at(GAP[1]),
        "vantage": "north",
        **columns,
    }


def judge(
    settings: Settings, evidence: Mapping[tables.Table, Sequence[dict[str, Any]]], now_us: int
) -> list[dict[str, Any]]:
    """The rows of ``delivery_status`` as of ``now_us``, microseconds of the recorded clock."""
    create_tables(settings.paths, (*verdicts.TABLES_READ, tables.DELIVERY_STATUS))
    read = {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "next_offset": 1_000, "event_time": now_us}
    clock = {tables.CLOCK: [{**read, "query_id": "q", "batch_id": 0, "kind": "batch"}]}
    for table, rows in {**evidence, **clock}.items():
        append_rows(settings.paths, table, as_arrow(rows, table))
    verdicts.run(None, settings)  # type: ignore[arg-type]
    return rows_of(open_table(settings.paths, tables.DELIVERY_STATUS))
