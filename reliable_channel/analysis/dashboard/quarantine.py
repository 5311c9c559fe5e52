"""Builds the page of the quarantine: counts by reason, samples as hex, and the command that requeues them."""

from __future__ import annotations

from typing import Any

from reliable_channel.analysis.dashboard.sections import Rows, section
from reliable_channel.analysis.dashboard.windows import TimeWindow
from reliable_channel.analysis.figures import CAME
from reliable_channel.analysis.report.snapshot import TableSnapshot

TABLES = ("clock", "quarantine")
PER_PAGE = 20
SAMPLE_BYTES = 256

MEANINGS = {
    "null_value": "the record has no value (a tombstone)",
    "too_large": "above 1 MiB; refused unread",
    "bad_header": "header pubsub_topic is missing or not UTF-8, or the source is unknown",
    "malformed_envelope": "not a WakuMessage: truncated, garbage, or text that is not UTF-8",
    "empty_content_topic": "the content topic is empty",
    "meta_too_long": "meta is longer than 64 bytes",
    "undecryptable": "no configured key decrypts it; requeue processes it once one does",
    "plaintext_refused": "readable without a key where a key is configured",
    "malformed_sds": "on a channel's content topic, but not an SDS message",
    "other_family": "an SDS message of the other family; the detail names the setting that reads it",
    "sds_without_id": "no message id or no sender id",
    "sds_without_channel": "no channel id",
    "sds_invalid_kind": "neither a Lamport timestamp nor content",
    "sds_history_too_long": "more than 1 000 history entries",
    "sds_filter_size": "a Bloom filter of a size the family does not have",
    "lamport_out_of_range": "a Lamport timestamp more than 24 h ahead of the record",
    "malformed_segment": "not a segment, in a dialect that wraps every payload",
    "segment_hash_length": "looks like a segment, but its hash is not 32 bytes long",
    "segment_count": "looks like a segment, but its counts are out of range",
    "segment_index": "looks like a segment, but its index is not below its count",
    "segment_hash_mismatch": "an ephemeral message whose payload has another hash",
    "over_quota": "above a quota of its sender, channel, topic or pattern",
}


def page(lake: TableSnapshot, window: TimeWindow, reason: str, number: int) -> dict[str, Any]:
    """The parts of the page."""
    return {
        "reasons": section(lake, ("quarantine",), lambda: reasons(lake, window)),
        "samples": section(lake, ("quarantine",), lambda: samples(lake, window, reason, number)),
    }


def reasons(lake: TableSnapshot, window: TimeWindow) -> list[dict[str, Any]]:
    """Reason, stage and number of records, by disposition."""
    return lake.select(
        f"""
        SELECT reason, any_value(stage) AS stage, count(*) AS records,
               count(*) FILTER (disposition = 'dropped') AS dropped, count(*) FILTER (disposition = 'kept') AS kept,
               count(*) FILTER (disposition = 'requeued') AS requeued, max(event_time) AS last
        FROM quarantine WHERE {CAME}
        GROUP BY reason ORDER BY records DESC, reason LIMIT 100
        """,  # noqa: S608 - constants of our own
        window.bounds,
    )


def samples(lake: TableSnapshot, window: TimeWindow, reason: str, number: int) -> Rows:
    """The newest records, with the beginning of their bytes."""
    return Rows.of(
        lake,
        f"""
        SELECT kafka_topic, kafka_partition, kafka_offset, event_time, stage, reason, detail, disposition,
               content_topic, raw_bytes, raw[1:$sample] AS raw
        FROM quarantine
        WHERE {CAME} AND ($reason = '' OR reason = $reason)
        ORDER BY event_time DESC, kafka_topic, kafka_partition, kafka_offset DESC, reason
        """,  # noqa: S608 - constants of our own
        {**window.bounds, "reason": reason, "sample": SAMPLE_BYTES},
        number,
        PER_PAGE,
    )
