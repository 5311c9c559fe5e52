"""Measures each rule with SQL over a snapshot of the tables, as of the recorded clock: one reading per subject.

Deterministic: the same tables give the same readings at any time. Only ``clock_stopped`` and the age of a metric use
the wall clock, which is an argument. A subject is the channel key as JSON, a content topic, a query, or ``pipeline``.
It may contain text that strangers chose and is treated as data; ``detail`` contains only this program's words and
numbers.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from reliable_channel.analysis import text
from reliable_channel.analysis.alerts import rules
from reliable_channel.analysis.figures import CAME, LOSS, PASSED, SEEN, VERDICTS, drops, records
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.splits import find_splits, read_contacts
from reliable_channel.lake.tables import CHANNEL_KEY, EPOCH

PIPELINE = "pipeline"
LONGEST_SUBJECT = 2_000
_SPLIT_EVERY_MS = 300_000
"""How often the past of a channel is looked at; the newest message of each participant always is."""


@dataclass(frozen=True, slots=True)
class Reading:
    """``value`` in the unit of the rule's kind."""

    subject: str
    value: float
    detail: str


def measure_rule(lake: TableSnapshot, rule: rules.Rule, clock: dt.datetime | None, now: dt.datetime) -> list[Reading]:
    """Measure a rule: one reading per subject, largest value first; empty when there is nothing to measure."""
    if isinstance(rule, rules.ClockStopped):
        return _measure_clock(lake, now)
    if isinstance(rule, rules.Metric):
        return _read_metric(lake, rule, now)
    if clock is None:
        return []
    measure: Callable[..., list[Reading]] = _MEASURES[type(rule)]
    return measure(lake, rule, {"since": clock - dt.timedelta(milliseconds=rule.window_ms), "until": clock})


def _measure_loss_rate(lake: TableSnapshot, rule: rules.LossRate, window: dict[str, Any]) -> list[Reading]:
    # By the newest verdicts. Messages that are not settled may still arrive. The window has no end, because the first
    # trace of a message that only its sender recorded may be later than everything that was read.
    key = ", ".join(CHANNEL_KEY)
    rows = lake.select(
        f"""
        SELECT {key if rule.per == "channel" else "NULL AS channel_id"},
               {VERDICTS}, missing + delivered AS judged, {LOSS} AS loss
        FROM delivery_status WHERE settled AND first_seen > $since
        GROUP BY ALL HAVING judged >= $at_least ORDER BY loss DESC
        """,  # noqa: S608 - text of our own
        {"since": window["since"], "at_least": rule.at_least},
    )
    return [
        Reading(
            _name_channel(row) if rule.per == "channel" else PIPELINE,
            row["loss"],
            f"{row['missing']} of {row['judged']} settled messages are missing",
        )
        for row in rows
    ]


def _measure_quarantine_rate(lake: TableSnapshot, rule: rules.QuarantineRate, window: dict[str, Any]) -> list[Reading]:
    counted = f"{CAME} AND ($every OR list_contains($reasons::VARCHAR[], reason))"
    row = lake.select(
        f"SELECT {drops(counted)} AS refused, {records(CAME)} AS came",
        {**window, "every": not rule.reasons, "reasons": list(rule.reasons)},
    )[0]
    if row["came"] < rule.at_least:
        return []
    why = f" ({', '.join(rule.reasons)})" if rule.reasons else ""
    return [
        Reading(PIPELINE, row["refused"] / row["came"], f"{row['refused']} of {row['came']} records quarantined{why}")
    ]


def _measure_silence(lake: TableSnapshot, rule: rules.SilentChannel, window: dict[str, Any]) -> list[Reading]:
    # Each channel by the clock of its own partition: another one may be ahead of what was read of this one.
    rows = lake.select(
        f"""
        WITH clocks AS (
                 SELECT kafka_topic, kafka_partition, max(event_time) AS at FROM clock WHERE {PASSED} GROUP BY ALL),
             received AS (SELECT pubsub_topic, content_topic, channel_id, count(*) AS messages, max(event_time) AS last,
                              arg_max({{'topic': kafka_topic, 'partition': kafka_partition}}, event_time) AS last_in
                       FROM sds_messages WHERE {CAME}
                       GROUP BY ALL HAVING count(*) >= $at_least)
        SELECT pubsub_topic, content_topic, channel_id, messages, epoch_ms(clocks.at) - epoch_ms(last) AS silent_ms
        FROM received JOIN clocks ON clocks.kafka_topic = last_in.topic AND clocks.kafka_partition = last_in.partition
        ORDER BY silent_ms DESC
        """,  # noqa: S608 - text of our own
        {**window, "at_least": rule.at_least},
    )
    return [
        Reading(
            _name_channel(row),
            float(row["silent_ms"]),
            f"nothing for {text.duration(row['silent_ms'])}, after {text.pluralize(row['messages'], 'SDS messages')}",
        )
        for row in rows
    ]


def _count_partitions(lake: TableSnapshot, rule: rules.TopicInPartitions, window: dict[str, Any]) -> list[Reading]:
    rows = lake.select(
        f"""
        SELECT content_topic, max(partitions) AS partitions FROM (
            SELECT kafka_topic, content_topic, count(DISTINCT kafka_partition) AS partitions FROM sds_messages
            WHERE {CAME} GROUP BY ALL)
        GROUP BY ALL ORDER BY partitions DESC, content_topic
        """,  # noqa: S608 - constants of our own
        window,
    )
    return [
        Reading(
            _shorten(row["content_topic"] or ""),
            float(row["partitions"]),
            f"in {text.pluralize(row['partitions'], 'partitions')}",
        )
        for row in rows
    ]


def _measure_budget(lake: TableSnapshot, rule: rules.Budget, window: dict[str, Any]) -> list[Reading]:
    # The busiest epoch of any sender counts. The detail does not name the sender: anybody can send in its name.
    rows = lake.select(
        f"""
        SELECT pubsub_topic, content_topic, channel_id, max(used) AS used FROM (
            SELECT pubsub_topic, content_topic, channel_id, sender_id, count(*) AS used FROM dispatches
            WHERE {SEEN} AND ($every OR role IN ('repeat', 'sync'))
            GROUP BY pubsub_topic, content_topic, channel_id, sender_id, sent_ms - sent_ms % $epoch_ms)
        GROUP BY ALL ORDER BY used DESC, channel_id, content_topic, pubsub_topic
        """,  # noqa: S608 - constants of our own
        {**window, "every": rule.of == "all", "epoch_ms": rule.epoch_size_ms},
    )
    what = "envelopes" if rule.of == "all" else "envelopes of control traffic"
    return [
        Reading(
            _name_channel(row),
            row["used"] / rule.messages_per_epoch,
            f"a sender used {row['used']} of {rule.messages_per_epoch} {what} in an epoch of"
            f" {text.duration(rule.epoch_size_ms)}",
        )
        for row in rows
    ]


def _measure_split(lake: TableSnapshot, rule: rules.SplitChannel, window: dict[str, Any]) -> list[Reading]:
    until = window["until"]
    now_ms = until.timestamp() * 1000
    readings = []
    for key, rows in read_contacts(lake, CAME, window, _SPLIT_EVERY_MS).items():
        split = next(iter(find_splits(lake, key, rows, _SPLIT_EVERY_MS)[-1:]), None)
        if split is not None and split.is_open(now_ms):
            since = dt.datetime.fromtimestamp(split.since_ms / 1000, dt.UTC)
            sizes = " and ".join(str(len(group)) for group in split.groups)
            detail = f"groups of {sizes} participants lack each other's messages since {since:%Y-%m-%d %H:%M:%S}"
            readings.append(Reading(_name_channel(key._asdict()), now_ms - split.since_ms, detail))
    return sorted(readings, key=lambda reading: -reading.value)


def _count_mixed_families(lake: TableSnapshot, rule: rules.MixedFamilies, window: dict[str, Any]) -> list[Reading]:
    key = ", ".join(CHANNEL_KEY)
    rows = lake.select(
        f"""
        WITH received AS (SELECT {key}, family, sender_id, max(encryption_layer) AS layer FROM sds_messages
                       WHERE {CAME} AND sds_kind <> 'tick'
                       GROUP BY ALL HAVING count(*) >= $at_least),
             forms AS (SELECT {key}, 'family' AS kind, family AS form, count(*) AS senders FROM received GROUP BY ALL
                       UNION ALL SELECT {key}, 'encryption layer', layer, count(*) FROM received
                       WHERE layer IS NOT NULL GROUP BY ALL)
        SELECT {key}, kind, min(senders) AS fewer, max(senders) AS more, arg_min(form, (senders, form)) AS form
        FROM forms GROUP BY ALL HAVING count(*) > 1 ORDER BY fewer DESC, {key}, kind DESC
        """,  # noqa: S608 - text of our own
        {**window, "at_least": rule.at_least},
    )
    by_channel: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_channel.setdefault(_name_channel(row), []).append(row)
    return [
        Reading(
            channel,
            float(mixed[0]["fewer"]),
            "; ".join(
                f"{text.pluralize(row['fewer'], 'senders')} of {row['kind']} {row['form']} and {row['more']} of the"
                " other cannot read each other"
                for row in mixed
            ),
        )
        for channel, mixed in by_channel.items()
    ]


def _read_metric(lake: TableSnapshot, rule: rules.Metric, now: dt.datetime) -> list[Reading]:
    value = {
        "newest": "arg_max(value, (recorded_at, batch_id))",
        "sum": "sum(value)",
        "max": "max(value)",
        "age": f"greatest(0, {now.timestamp() * 1000:.0f} - epoch_ms(max(recorded_at)))",
    }[rule.take]
    table = lake.table("pipeline_metrics")
    if table is None:
        return []
    # From the statistics of the files: by a time that is known beforehand, older files are not opened.
    files = pa.table(table.get_add_actions(flatten=True))
    newest = files["max.recorded_at"].to_pylist() if "max.recorded_at" in files.column_names else []
    # What is dated later is of a clock that was ahead for a while.
    since = min(max(filter(None, newest), default=EPOCH), now) - dt.timedelta(milliseconds=rule.window_ms)
    if rule.take == "age":  # of a row of any age, or the alert would be cleared when the window has passed
        since = EPOCH
    rows = lake.select(
        f"""
        SELECT query, ({value})::DOUBLE AS value FROM pipeline_metrics
        WHERE metric = $metric AND ($every OR list_contains($queries::VARCHAR[], query)) AND recorded_at > $since
          AND recorded_at <= $now
        GROUP BY query ORDER BY value DESC, query
        """,  # noqa: S608 - text of our own
        {
            "metric": rule.metric,
            "every": not rule.queries,
            "queries": list(rule.queries),
            "since": since,
            "now": now,
        },
    )

    def describe(value: float) -> str:
        if rule.take == "age":
            return f"{rule.metric} was last recorded {text.duration(value)} ago"
        return f"{rule.metric} ({rule.take}) is {value:,.0f}"

    return [
        Reading(_shorten(row["query"]), row["value"], describe(row["value"]))
        for row in rows
        if row["value"] is not None
    ]


def _measure_clock(lake: TableSnapshot, now: dt.datetime) -> list[Reading]:
    last = lake.select("SELECT max(recorded_at) AS at FROM clock WHERE recorded_at <= $now", {"now": now})[0]["at"]
    if last is None:
        return []
    silent_ms = max(0.0, (now - last) / dt.timedelta(milliseconds=1))
    return [Reading(PIPELINE, silent_ms, f"ingest wrote its clock {text.duration(silent_ms)} ago")]


_MEASURES: dict[type, Callable[..., list[Reading]]] = {
    rules.LossRate: _measure_loss_rate,
    rules.QuarantineRate: _measure_quarantine_rate,
    rules.SilentChannel: _measure_silence,
    rules.TopicInPartitions: _count_partitions,
    rules.Budget: _measure_budget,
    rules.SplitChannel: _measure_split,
    rules.MixedFamilies: _count_mixed_families,
}


def _name_channel(row: dict[str, Any]) -> str:
    return _shorten(json.dumps([row[name] for name in CHANNEL_KEY], ensure_ascii=False))


def _shorten(subject: str) -> str:
    """The subject, or its beginning and digest if it is long."""
    # A stranger chooses its length, and the digest tells two with one beginning apart.
    if len(subject) <= LONGEST_SUBJECT:
        return subject
    digest = hashlib.sha256(subject.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{subject[: LONGEST_SUBJECT - 80]}… sha256:{digest}"
