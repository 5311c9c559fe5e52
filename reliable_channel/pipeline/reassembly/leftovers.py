"""Expired sets that are only late segments of a message that was rebuilt: they are no *incomplete message*.

A store replay may bring a few segments of a message back a day after it was complete, or a year. Whether ``messages``
has it is looked up where it must stand: in files of about the time at which it was sent, by its Lamport timestamps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from reliable_channel.config import PathSettings
from reliable_channel.pipeline.storage.arrow_schema import as_arrow
from reliable_channel.pipeline.storage.io import read_table
from reliable_channel.pipeline.tables import INCOMPLETE_MESSAGES, MESSAGES

Range = tuple[int, int]
"""Lamport timestamps (ms) from, to, inclusive."""

SPREAD_MS = 3_600_000
"""How far the segments of one send may be from each other: a sender's rate limit can hold the later ones."""

MAX_RANGES = 32

_SCOPE = ["pubsub_topic", "content_topic", "channel_id", "sender_id", "entire_message_hash"]


def without_leftovers(spark: SparkSession, given_up: Sequence[Mapping[str, Any]], paths: PathSettings) -> DataFrame:
    """Results of kind ``incomplete`` as rows of ``incomplete_messages``, without the leftovers of rebuilt messages."""
    rows = spark.createDataFrame(as_arrow(given_up, INCOMPLETE_MESSAGES))
    told = [(each["oldest_lamport"], each["newest_lamport"]) for each in given_up if each["oldest_lamport"] is not None]
    if not told:
        return rows
    messages = read_table(spark, paths, MESSAGES).where(_sent_in(merged(told)))
    messages = messages.select(*_SCOPE, F.col("sds_ids").alias("known_ids"))
    known = F.size(F.array_except("sds_ids", "known_ids")) == 0
    leftovers = rows.join(messages, _SCOPE).where(known).select(*_SCOPE, "event_time", "sds_ids")
    return rows.join(leftovers, [*_SCOPE, "event_time", "sds_ids"], "left_anti")


def merged(ranges: Iterable[Range]) -> list[Range]:
    """The ranges, each wider by ``SPREAD_MS`` at both ends, joined where they touch; ``MAX_RANGES`` at most."""
    found: list[Range] = []
    for low, high in sorted((low - SPREAD_MS, high + SPREAD_MS) for low, high in ranges):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    while len(found) > MAX_RANGES:
        gaps = [(after[0] - before[1], number) for number, (before, after) in enumerate(pairwise(found))]
        _, number = min(gaps)
        found[number : number + 2] = [(found[number][0], found[number + 1][1])]
    return found


def _sent_in(ranges: list[Range]) -> Column:
    sent = F.col("first_lamport_timestamp")
    return reduce(lambda a, b: a | b, [sent.between(*each) for each in ranges], sent.isNull())
