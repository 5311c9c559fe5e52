"""Computes the times in which no bridge listened: gaps that no store filled, or one that another bridge contradicts,
without the times in which another bridge followed the topic. No Spark."""

from __future__ import annotations

import datetime as dt
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake.gap_witnesses import count_lacking, read_last_rows
from reliable_channel.lake.read import dataset_of, open_table
from reliable_channel.lake.tables import Table, TopicPartition

_BY_OWN_NODE = "source in ('relay', 'filter') and seen_at is not null"

BRIDGES = f"select distinct vantage from sightings where {_BY_OWN_NODE}"  # noqa: S608 - text of our own only
"""The bridges whose own nodes received envelopes."""

RECEIVED = f"""
    select vantage, pubsub_topic, content_topic, min(seen_at) as since, max(seen_at) as until
    from (select vantage, message_hash, seen_at from sightings
        where {_BY_OWN_NODE})
    join (select distinct pubsub_topic, content_topic, envelope_hash from sds_messages)
    on message_hash = envelope_hash group by vantage, pubsub_topic, content_topic
"""  # noqa: S608
"""The first and last time a bridge received envelopes of a topic from its own node."""


PLACED = """
    select distinct pubsub_topic, content_topic, kafka_topic, kafka_partition from sds_messages
    where content_topic is not null
"""
"""The Kafka partitions that have records of a topic."""

Topic = tuple[str, str]
"""Pubsub topic and content topic."""


class Span(NamedTuple):
    """A time span, both ends included."""

    since: dt.datetime
    until: dt.datetime


class Gap(NamedTuple):
    """A time span (event time) in which ``vantage`` did not listen; None: Kafka lost the records of all bridges, of one
    partition (``topic_partition``)."""

    span: Span
    vantage: str | None
    topic_partition: TopicPartition | None = None


class Silence(NamedTuple):
    """The times in which no bridge listened: the open gaps, and their rest for topics of which another bridge has
    received envelopes, or whose records are in other partitions. ``received``: the former alone; if it changes, all
    verdicts may."""

    gaps: list[Gap]
    by_topic: dict[Topic, list[Span]]
    received: dict[Topic, list[Span]]


NO_SILENCE = Silence([], {}, {})
"""Without gaps."""


def find_silence(gaps: list[Gap], run: Callable[[str], list[dict[str, Any]]]) -> Silence:
    """The times in which no bridge listened, from open gaps. ``run`` gives the rows of :data:`BRIDGES`,
    :data:`RECEIVED` and :data:`PLACED`."""
    received: dict[Topic, dict[str, Span]] = {}
    silent = {gap.vantage for gap in gaps if gap.vantage is not None}
    if silent and len(silent.union(row["vantage"] for row in run(BRIDGES))) > 1:  # else no other one can have listened
        for row in run(RECEIVED):
            by = received.setdefault((row["pubsub_topic"], row["content_topic"]), {})
            by[row["vantage"]] = Span(row["since"], row["until"])
    placed: dict[Topic, set[TopicPartition]] = {}
    if any(gap.topic_partition is not None for gap in gaps):
        for row in run(PLACED):
            topic_partitions = placed.setdefault((row["pubsub_topic"], row["content_topic"]), set())
            topic_partitions.add((row["kafka_topic"], row["kafka_partition"]))
    every, own = [gap.span for gap in gaps], join_gaps(gaps)

    def rest(topics: Iterable[Topic], partitions_of: Mapping[Topic, set[TopicPartition]]) -> dict[Topic, list[Span]]:
        left = {
            topic: subtract_received(gaps, own, received.get(topic, {}), partitions_of.get(topic, ()))
            for topic in topics
        }
        # Topics without an entry have all gaps.
        return {topic: spans for topic, spans in left.items() if spans != every}

    return Silence(gaps, rest({*received, *placed}, placed), rest(received, {}))


def read_open_gaps(paths: PathSettings) -> list[Gap]:
    """The gaps that no store has filled, by the last row of each, or only one that lacks what another bridge saw."""

    def read(table: Table, columns: Sequence[str], where: pc.Expression | None = None) -> pa.Table:
        return dataset_of(open_table(paths, table)).to_table(columns=columns, filter=where)

    rows = read_last_rows(read)
    lacking = count_lacking(rows, read)
    return [
        Gap(
            Span(row["from_time"], row["to_time"]),
            row["vantage"],
            (row["kafka_topic"], row["kafka_partition"]) if row["kafka_partition"] >= 0 else None,
        )
        for row in rows
        if (row["status"] != "filled" or row["name"] in lacking)
        and row["from_time"] is not None
        and row["to_time"] is not None
    ]


def join_gaps(gaps: Iterable[Gap]) -> dict[str, list[Span]]:
    """The times in which each bridge did not listen, in order and apart from each other."""
    joined: dict[str, list[Span]] = {}
    for span, vantage, _ in sorted(gaps, key=lambda gap: gap.span):
        if vantage is None or span.since >= span.until:
            continue
        spans = joined.setdefault(vantage, [])
        if spans and span.since <= spans[-1].until:
            spans[-1] = Span(spans[-1].since, max(spans[-1].until, span.until))
        else:
            spans.append(span)
    return joined


def subtract_received(
    gaps: Collection[Gap],
    own: Mapping[str, Sequence[Span]],
    received: Mapping[str, Span],
    topic_partitions: Collection[TopicPartition] = (),
) -> list[Span]:
    """The rest of ``gaps`` for a topic that bridges have ``received``, and whose records are in
    ``topic_partitions``; without any, they may be in every partition. ``own``: :func:`join_gaps` of them.

    A bridge followed the topic from its first to its last envelope, except during its own gaps. What Kafka lost of
    another partition hides nothing of the topic."""
    listening = {vantage: _subtract(span, own.get(vantage, ())) for vantage, span in received.items()}
    left: list[Span] = []
    for gap in gaps:
        if gap.topic_partition is not None and topic_partitions and gap.topic_partition not in topic_partitions:
            continue
        parts = [gap.span]
        for vantage, spans in listening.items():
            if gap.vantage is not None and vantage != gap.vantage:
                parts = [rest for part in parts for rest in _subtract(part, spans)]
        left += parts
    return left


def _subtract(span: Span, others: Sequence[Span]) -> list[Span]:
    """``span`` without ``others``, which are in order and apart from each other."""
    if not others:
        return [span]
    left, since = [], span.since
    # Only those that may overlap: each topic is compared with the gaps of months.
    for at in range(bisect_right(others, since, key=lambda other: other.until), len(others)):
        if others[at].since >= span.until:
            break
        if since < others[at].since:
            left.append(Span(since, others[at].since))
        since = others[at].until
    return [*left, Span(since, span.until)] if since < span.until else left
