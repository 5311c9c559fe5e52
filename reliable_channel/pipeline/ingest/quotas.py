"""Decides which messages are within the quotas of their scopes: sender, channel, content topic, pattern of content
topics, pubsub topic. No Spark.

A message is admitted if no scope exceeds its quota with it. Messages are counted per Kafka partition and window of
event time, in record order, and only admitted ones count. So a sender who floods a channel uses up only its own quota.
Anyone can invent names, so strangers could use up a shared scope. When a shared scope exceeds its quota, members that
use no more than an equal share of it are still admitted, up to twice the quota. The result depends only on the
preceding rows of the partition, not on the cut into micro-batches, and ``sds_messages`` is all the state it needs.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import Quota, QuotaSettings
from reliable_channel.lake.tables import CHANNEL_KEY, RECORD_KEY, TopicPartition

Sender = tuple[str, str, str, str]
"""Pubsub topic, content topic, channel id, sender id."""

Topic = tuple[str, str]
"""Pubsub topic, content topic."""

PatternOf = Callable[[str, str], str | None]
"""Content topic and pubsub topic → the pattern that admits it; ``None`` if the topic is configured by its name."""

HARD_LIMIT = 2
"""The multiple of its quota that no scope exceeds."""

Scope = tuple[str, bytes]
"""The name of a quota, and a digest of the names it applies to: senders choose names of up to 1 024 characters each."""


class Cost(NamedTuple):
    """The usage of a quota by messages; the fields are those of :class:`~reliable_channel.config.Quota`."""

    messages: int = 0
    bytes: int = 0
    segments: int = 0
    named_ids: int = 0

    def plus(self, other: Cost) -> Cost:
        """The sum of both."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


COSTING = ("sds_id", "sender_id", "content_bytes", "segment_kind", "causal_history", "repair_request")
"""The columns of ``sds_messages`` that determine the cost of a message."""

SENDER = (*CHANNEL_KEY, "sender_id")

ADMISSION_COLUMNS = (*RECORD_KEY, "event_time", *CHANNEL_KEY, *COSTING)
"""The columns of ``sds_messages`` that admission reads."""


def compute_costs(messages: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """The cost of each SDS message, under the names of :class:`Cost`. ``messages`` has the columns ``COSTING``.

    Bytes are those of the content, and of every id, hint and sender id that the message contains, because keyed state
    may keep each of them."""
    lists = [messages["causal_history"], messages["repair_request"]]
    sizes = [pc.cast(messages["content_bytes"], pa.int64()), *_measure_sizes(messages["sds_id"], messages["sender_id"])]
    sizes += [pa.array(_sum_entry_bytes(column)) for column in lists]
    return {
        "messages": pa.repeat(1, len(sizes[0])),
        "bytes": _add_columns(sizes),
        "segments": pc.is_in(messages["segment_kind"], pa.array(["data", "parity"])).cast(pa.int64()),
        "named_ids": _add_columns([pc.list_value_length(column) for column in lists]),
    }


def _measure_sizes(*columns: pa.Array) -> list[pa.Array]:
    return [pc.cast(pc.binary_length(column), pa.int64()) for column in columns]


def _add_columns(columns: Sequence[pa.Array]) -> pa.Array:
    return functools.reduce(pc.add, (pc.fill_null(column, 0) for column in columns))


def _sum_entry_bytes(lists: pa.Array) -> npt.NDArray[np.int64]:
    """The total bytes of the entries of each list."""
    entries = pc.list_flatten(lists)
    sizes = _add_columns(
        _measure_sizes(*(pc.struct_field(entries, name) for name in ("sds_id", "retrieval_hint", "sender_id")))
    )
    of = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    sums: npt.NDArray[np.int64] = np.zeros(len(lists), np.int64)
    np.add.at(sums, of, sizes.to_numpy(zero_copy_only=False))
    return sums


Group = tuple[TopicPartition, int, Sender, Cost]
"""The cost of one sender's messages in one window of a Kafka partition. A window is event time div ``window_ms``."""


def sum_by_sender(
    messages: Mapping[str, pa.Array], quotas: QuotaSettings, uncounted: pa.Table | None = None
) -> Iterator[Group]:
    """Sum up the cost of SDS messages. ``messages`` has the columns ``ADMISSION_COLUMNS``; ``uncounted``: the Kafka
    coordinates of messages that do not count."""
    window = pc.divide(messages["event_time"].cast(pa.int64()), quotas.window_ms * 1000)
    kept = {name: messages[name] for name in (*RECORD_KEY, *SENDER)}
    rows = pa.table({**kept, "window": window, **compute_costs(messages)})
    if uncounted is not None:
        rows = rows.join(uncounted, [*RECORD_KEY], join_type="left anti")
    sums = rows.group_by([*RECORD_KEY[:2], "window", *SENDER]).aggregate([(name, "sum") for name in Cost._fields])
    for row in sums.to_pylist():
        sender = tuple(row[name] for name in SENDER)
        cost = Cost(*(row[f"{name}_sum"] for name in Cost._fields))
        yield (row["kafka_topic"], row["kafka_partition"]), row["window"], sender, cost


class Candidate(NamedTuple):
    """One message to be admitted or refused."""

    topic_partition: TopicPartition
    offset: int
    window: int
    sender: Sender
    cost: Cost


Topics = set[tuple[TopicPartition, Topic]]
"""Content topics of Kafka partitions."""


Refused = dict[tuple[str, int, int], str]
"""Messages that exceed a quota: Kafka topic, partition and offset → the text that names the quota."""


class _Window:
    """The admitted cost in one window of a Kafka partition, and the number of members of each shared scope: senders in
    a channel, channels in a content topic, and so on."""

    def __init__(self) -> None:
        self.spent: dict[Scope, Cost] = {}
        self.members: dict[Scope, int] = {}

    def add(self, scopes: Sequence[Scope], cost: Cost) -> None:
        for scope, shared in zip(scopes, (*scopes[1:], None), strict=True):
            if shared is not None and scope not in self.spent:
                self.members[shared] = self.members.get(shared, 0) + 1
            self.spent[scope] = self.spent.get(scope, Cost()).plus(cost)


class QuotaUsage:
    """The admitted cost per Kafka partition, window and scope."""

    def __init__(self, quotas: QuotaSettings, pattern_of: PatternOf) -> None:
        self._quotas = quotas
        self._pattern_of = pattern_of
        self._windows: dict[tuple[TopicPartition, int], _Window] = {}

    def add(self, topic_partition: TopicPartition, window: int, sender: Sender, cost: Cost) -> None:
        """Count admitted messages."""
        self._windows.setdefault((topic_partition, window), _Window()).add(self._list_scopes(sender), cost)

    def judge(
        self,
        groups: Sequence[Group],
        candidates: Callable[[Topics], Iterable[Candidate]],
    ) -> Refused:
        """Count the admitted messages of a micro-batch; returns the refused ones.

        ``groups`` are its messages summed up by partition, window and sender. ``candidates`` returns those of some
        content topics one by one, in record order of each partition; it is called only for topics that could exceed a
        quota."""
        above = self._could_exceed(groups)
        for topic_partition, window, sender, cost in groups:
            if (topic_partition, sender[:2]) not in above:
                self.add(topic_partition, window, sender, cost)
        in_order = sorted(candidates(above), key=lambda one: (one.topic_partition, one.offset)) if above else ()
        refused = {(*one.topic_partition, one.offset): why for one in in_order if (why := self._count(one)) is not None}
        latest: dict[TopicPartition, int] = {}
        for topic_partition, window, *_ in groups:
            latest[topic_partition] = max(window, latest.get(topic_partition, window))
        for key in [key for key in self._windows if key[1] < latest.get(key[0], key[1])]:
            del self._windows[key]  # event time never decreases
        return refused

    def _could_exceed(self, groups: Sequence[Group]) -> Topics:
        """The content topics with a scope that would exceed its quota if all of ``groups`` were admitted."""
        sums = QuotaUsage(self._quotas, self._pattern_of)
        for group in groups:
            sums.add(*group)
        above = set()
        for key, usage in sums._windows.items():
            spent = self._windows[key].spent if key in self._windows else {}
            for scope, cost in usage.spent.items():
                if self._find_exceeded(scope, spent.get(scope, Cost()).plus(cost)) is not None:
                    above.add((key, scope))
        if not above:
            return set()
        return {
            (topic_partition, sender[:2])
            for topic_partition, window, sender, _ in groups
            if any(((topic_partition, window), scope) in above for scope in self._list_scopes(sender))
        }

    def _count(self, candidate: Candidate) -> str | None:
        """Count one message, or return the text that names the quota it exceeds."""
        topic_partition, _, window, sender, cost = candidate
        here = self._windows.setdefault((topic_partition, window), _Window())
        scopes = self._list_scopes(sender)
        for number, scope in enumerate(scopes):
            total = here.spent.get(scope, Cost()).plus(cost)
            why = self._find_exceeded(scope, total)
            if why is not None and not self._is_modest(here, scopes[: number + 1], cost, total):
                return why
        here.add(scopes, cost)
        return None

    def _is_modest(self, here: _Window, scopes: Sequence[Scope], cost: Cost, total: Cost) -> bool:
        """Whether the message is within an equal share of the last of ``scopes``, which must stay within twice its
        quota. The share is that of a member, or of a member of that member, and so on down to the sender."""
        quota: Quota = getattr(self._quotas, scopes[-1][0])
        limits = [getattr(quota, name) for name in Cost._fields]
        if any(used > limit * HARD_LIMIT for used, limit in zip(total, limits, strict=True)):
            return False
        sharing = 1
        for member, shared in zip(scopes[-2::-1], scopes[:0:-1], strict=True):
            sharing *= here.members.get(shared, 0) + (member not in here.spent)
            own = here.spent.get(member, Cost()).plus(cost)
            if all(used * sharing <= limit for used, limit in zip(own, limits, strict=True)):
                return True
        return False

    def _find_exceeded(self, scope: Scope, cost: Cost) -> str | None:
        """The text that names the quota that ``cost`` exceeds; ``None`` if it exceeds none."""
        quota: Quota = getattr(self._quotas, scope[0])
        for what, used in zip(Cost._fields, cost, strict=True):
            limit = getattr(quota, what)
            if used > limit:
                return f"quotas.{scope[0]}.{what} is {limit} in {self._quotas.window_ms} ms"
        return None

    def _list_scopes(self, sender: Sender) -> tuple[Scope, ...]:
        """The scopes of a sender, smallest first: each is a member of the next, and a refusal names the smallest
        exceeded one."""
        pattern = self._pattern_of(sender[1], sender[0])
        own = tuple((name, _compute_digest(sender[:size])) for name, size in _OWN)
        shared = (("pattern", _compute_digest((pattern,))),) if pattern is not None else ()
        return (*own, *shared, ("pubsub_topic", _compute_digest(sender[:1])))


_OWN = (("sender", 4), ("channel", 3), ("content_topic", 2))
"""Quota → how many of the names in a :data:`Sender` its scope has."""


def _compute_digest(names: tuple[str, ...]) -> bytes:
    # JSON, because a name may contain whatever would separate two names.
    return hashlib.blake2b(json.dumps(names).encode(), digest_size=16).digest()
