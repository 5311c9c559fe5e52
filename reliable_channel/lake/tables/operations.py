"""The tables for the jobs themselves and their operators: clock, timers, metrics, alerts."""

from __future__ import annotations

from reliable_channel.lake.tables.columns import (
    A_HASH,
    KAFKA_TOPIC,
    RECORDED_AT,
)
from reliable_channel.lake.tables.model import DAY_MS, Column, Table

CLOCK = Table(
    "clock",
    "The recorded clock: per ingest micro-batch and Kafka partition how far it read, and the ticks that move silent"
    " keys.",
    "jobs/ingest.py",
    (
        KAFKA_TOPIC,
        Column("kafka_partition", "INT", "Kafka partition", nullable=False, example="0"),
        Column(
            "query_id",
            "STRING",
            "id of the ingest query (its checkpoint)",
            nullable=False,
            example="7cab319c-c9fc-41f1-8a4d-4d9c7d6f60d4",
        ),
        Column("batch_id", "BIGINT", "micro-batch, or the last one before an idle tick", nullable=False, example="17"),
        Column("kind", "STRING", "batch, idle (wall clock) or closing (the end of a back-fill)", example="batch"),
        Column(
            "event_time",
            "TIMESTAMP",
            "largest event time so far; later records are not before it",
            example="2026-01-01T00:01:12.455Z",
        ),
        Column("next_offset", "BIGINT", "the offset that comes next", example="643"),
        RECORDED_AT,
    ),
    ("kafka_topic", "kafka_partition", "query_id", "batch_id", "kind", "event_time"),
    retention_ms=7 * DAY_MS,
    retention_column="recorded_at",
)

TIMERS = Table(
    "timers",
    "Timers of keyed state: a log of changes, the last one of a key counts.",
    "jobs/reassembly.py, jobs/ack.py",
    (
        Column("job", "STRING", "reassembly or ack", nullable=False, example="reassembly"),
        Column(
            "query_id",
            "STRING",
            "id of the job's query (its checkpoint)",
            nullable=False,
            example="cd4ec860-ba3f-478f-ae9d-22fc6ee78c37",
        ),
        Column("batch_id", "BIGINT", "micro-batch of the change", nullable=False, example="17"),
        Column(
            "key",
            "STRING",
            "hex of the hash (reassembly), JSON of the channel key (ack)",
            nullable=False,
            example=A_HASH[2:],
        ),
        Column(
            "due",
            "TIMESTAMP",
            "when its next timer is due; null when the key is closed",
            example="2026-01-01T00:13:03.190Z",
        ),
        Column("kafka_topic", "STRING", "Kafka topic its rows come in", example="waku.envelopes"),
        Column("kafka_partition", "INT", "Kafka partition its rows come in", example="0"),
    ),
    ("job", "query_id", "batch_id", "key"),
    partition_by=("job",),
    former_name="open_keys",
)

PIPELINE_METRICS = Table(
    "pipeline_metrics",
    "Progress of every streaming query, one row per metric and micro-batch.",
    "every job (listener)",
    (
        Column("query", "STRING", "name of the query", nullable=False, example="ingest"),
        Column(
            "query_id", "STRING", "id of the query (its checkpoint)", example="7cab319c-c9fc-41f1-8a4d-4d9c7d6f60d4"
        ),
        Column("run_id", "STRING", "id of this run of it", example="0f3f8a4e-2c56-4d0c-9f7e-6f2b9a1f5d11"),
        Column("batch_id", "BIGINT", "micro-batch", example="17"),
        Column("metric", "STRING", "name of the metric, with its unit", example="processed_rows_per_second"),
        Column("value", "DOUBLE", "value", example="2412.5"),
        RECORDED_AT,
    ),
    ("query", "run_id", "batch_id", "metric"),
    retention_ms=30 * DAY_MS,
    retention_column="recorded_at",
)

ALERTS = Table(
    "alerts",
    "What somebody should look at, by the rules of conf/alerts.yaml: one row when an alert is raised, one when it is"
    " cleared. The last row of an alert and subject is its state.",
    "jobs/alerts.py",
    (
        Column("sequence", "BIGINT", "running number of the change, from 1", nullable=False, example="17"),
        Column("alert", "STRING", "name of the rule", nullable=False, example="loss_rate"),
        Column("kind", "STRING", "what the rule measures (docs/alerts.md)", example="loss_rate"),
        Column(
            "subject",
            "STRING",
            "what it is about: the channel key as JSON, a content topic, a query, or pipeline",
            example='["/waku/2/rs/1/0", "/reliable-channel/1/chat/proto", "talk"]',
        ),
        Column("state", "STRING", "raised or cleared", example="raised"),
        Column("severity", "STRING", "info, warning or critical", example="warning"),
        Column(
            "value",
            "DOUBLE",
            "what was measured, in the unit of the kind; null when there was nothing to measure",
            example="0.031",
        ),
        Column("threshold", "DOUBLE", "the rule's value above which it is raised, in the same unit", example="0.01"),
        Column(
            "detail",
            "STRING",
            "more, for people; in words of this program only",
            example="4 of 129 settled messages are missing",
        ),
        Column(
            "as_of",
            "TIMESTAMP",
            "recorded clock up to which the tables were read; null without one",
            example="2026-01-01T00:14:00Z",
        ),
        Column("recorded_at", "TIMESTAMP", "wall clock", example="2026-01-01T00:14:12Z"),
    ),
    ("sequence",),
    retention_ms=90 * DAY_MS,
    retention_column="recorded_at",
)
