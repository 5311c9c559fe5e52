"""The tables for the jobs themselves and their operators: clock, metrics, alerts."""

from reliable_channel.lake.tables.columns import DETAIL, EVENT_TIME, KAFKA_TOPIC, RECORDED_AT
from reliable_channel.lake.tables.model import DAY_MS, Column, Table

CLOCK = Table(
    "clock",
    "The recorded clock: how far each ingest micro-batch read each Kafka partition, and ticks for timers"
    " of silent keys.",
    "jobs/ingest.py",
    (
        KAFKA_TOPIC,
        Column("kafka_partition", "INT", "Kafka partition", nullable=False, example="0"),
        Column(
            "query_id",
            "STRING",
            "id of the ingest query, from its checkpoint",
            nullable=False,
            example="7cab319c-c9fc-41f1-8a4d-4d9c7d6f60d4",
        ),
        Column("batch_id", "BIGINT", "micro-batch; for a tick the last one before it", nullable=False, example="17"),
        Column(
            "kind",
            "STRING",
            "batch, idle (wall-clock tick) or closing (tick at the end of a back-fill)",
            example="batch",
        ),
        EVENT_TIME.describe("largest event time so far; no later record has an earlier one"),
        Column("next_offset", "BIGINT", "next offset to read", example="643"),
        RECORDED_AT,
    ),
    ("kafka_topic", "kafka_partition", "query_id", "batch_id", "kind", "event_time"),
    retention_ms=7 * DAY_MS,
    retention_column="recorded_at",
)

CONTINUOUS = "continuous"
"""The metric of a job that is not to end: 1 when it starts, 0 when it ends in order; not after a fault, because it was
to go on."""
FAILING = "failing"
"""The metric of a job that comes again and again (evidence, refetch, verdict, maintain): 1 while its runs fail, else
0."""

PIPELINE_METRICS = Table(
    "pipeline_metrics",
    "Progress of every streaming query, one row per metric and micro-batch.",
    "every job (listener)",
    (
        Column("query", "STRING", "name of the query", nullable=False, example="ingest"),
        Column(
            "query_id", "STRING", "id of the query, from its checkpoint", example="7cab319c-c9fc-41f1-8a4d-4d9c7d6f60d4"
        ),
        Column("run_id", "STRING", "id of this run of the query", example="0f3f8a4e-2c56-4d0c-9f7e-6f2b9a1f5d11"),
        Column("batch_id", "BIGINT", "micro-batch", example="17"),
        Column("metric", "STRING", "name of the metric, which ends in its unit", example="processed_rows_per_second"),
        Column("value", "DOUBLE", "value of the metric", example="2412.5"),
        RECORDED_AT,
    ),
    ("query", "run_id", "batch_id", "metric"),
    retention_ms=30 * DAY_MS,
    retention_column="recorded_at",
)

ALERTS = Table(
    "alerts",
    "Alerts by the rules of conf/alerts.yaml: one row when raised, one when cleared. The last row of an"
    " alert and subject is its state.",
    "jobs/alerts.py",
    (
        Column("sequence", "BIGINT", "number of the change, from 1", nullable=False, example="17"),
        Column("alert", "STRING", "name of the rule", nullable=False, example="loss_rate"),
        Column("kind", "STRING", "what the rule measures (docs/alerts.md)", example="loss_rate"),
        Column(
            "subject",
            "STRING",
            "what it is about: channel key as JSON, content topic, query, or pipeline",
            example='["/waku/2/rs/1/0", "/reliable-channel/1/chat/proto", "talk"]',
        ),
        Column("state", "STRING", "raised or cleared", example="raised"),
        Column("severity", "STRING", "info, warning or critical", example="warning"),
        Column(
            "value",
            "DOUBLE",
            "measured value in the unit of the kind; null if there was nothing to measure",
            example="0.031",
        ),
        Column("threshold", "DOUBLE", "limit of the rule in the same unit; raised above it", example="0.01"),
        DETAIL.describe("human-readable detail, no text from the network", "4 of 129 settled messages are missing"),
        Column(
            "as_of",
            "TIMESTAMP",
            "recorded clock up to which the tables were read; null without one",
            example="2026-01-01T00:14:00Z",
        ),
        RECORDED_AT.describe(RECORDED_AT.meaning, "2026-01-01T00:14:12Z"),
    ),
    ("sequence",),
    retention_ms=90 * DAY_MS,
    retention_column="recorded_at",
)
