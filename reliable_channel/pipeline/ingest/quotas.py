"""Decides which messages are within the quotas of their scopes: sender, channel, content topic, pattern of content
topics, pubsub topic. No Spark.

Per Kafka partition and window of event time, in record order, a message is admitted if none of its scopes is above its
quota with it; only admitted messages count. So a sender who floods a channel uses up its own quota and nobody else's.
Names are free to invent, so strangers could use up a shared scope: above its quota those are admitted who have no more
than an equal share of it, up to twice the quota. The result depends only on the rows before it in the partition,
wherever they are cut into micro-batches, and ``sds_messages`` is all that has to be remembered.
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
from reliable_channel.lake.tables import CHANNEL_KEY, RECORD_KEY
from reliable_channel.pipeline.clock import TopicPartition

Sender = tuple[str, str, str, str]
"""Pubsub topic, content topic, channel id, sender id."""

Topic = tuple[str, str]
"""Pubsub topic, content topic."""

PatternOf = Callable[[str, str], str | None]
"""Content topic and pubsub topic → the pattern that admits it, ``None`` where the topic is configured by its name."""

HARD_LIMIT = 2
"""No scope gets above its quota times this."""

Scope = tuple[str, bytes]
"""Which quota, and a digest of whose: names are the sender's word, up to 1 024 characters each."""


class Cost(NamedTuple):
    """What messages take of a quota; the names are those of :class:`~reliable_channel.config.Quota`."""

    messages: int = 0
    bytes: int = 0
    segments: int = 0
    named_ids: int = 0

    def plus(self, other: Cost) -> Cost:
        """Both together."""
        return Cost(*(a + b for a, b in zip(self, other, strict=True)))


COSTING = ("sds_id", "sender_id", "content_bytes", "segment_kind", "causal_history", "repair_request")
"""The columns of ``sds_messages`` that say what a message takes."""

SENDER = (*CHANNEL_KEY, "sender_id")

ASKED = (*RECORD_KEY, "event_time", *CHANNEL_KEY, *COSTING)
"""The columns of ``sds_messages`` that admission looks at."""


def costs_of(messages: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """What each SDS message takes, under the names of :class:`Cost`. ``messages`` has the columns ``COSTING``.

    Bytes are those of the content, and of every id, hint and sender id that the message holds: keyed state may keep
    each of them."""
    lists = [messages["causal_history"], messages["repair_request"]]
    sizes = [pc.cast(messages["content_bytes"], pa.int64()), *_sizes(messages["sds_id"], messages["sender_id"])]
    sizes += [pa.array(_entry_bytes(column)) for column in lists]
    return {
        "messages": pa.repeat(1, len(sizes[0])),
        "bytes": _sum(sizes),
        "segments": pc.is_in(messages["segment_kind"], pa.array(["data", "parity"])).cast(pa.int64()),
        "named_ids": _sum([pc.list_value_length(column) for column in lists]),
    }


def _sizes(*columns: pa.Array) -> list[pa.Array]:
    return [pc.cast(pc.binary_length(column), pa.int64()) for column in columns]


def _sum(columns: Sequence[pa.Array]) -> pa.Array:
    return functools.reduce(pc.add, (pc.fill_null(column, 0) for column in columns))


def _entry_bytes(lists: pa.Array) -> npt.NDArray[np.int64]:
    """The bytes of all entries of each list."""
    entries = pc.list_flatten(lists)
    sizes = _sum(_sizes(*(pc.struct_field(entries, name) for name in ("sds_id", "retrieval_hint", "sender_id"))))
    of = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    found: npt.NDArray[np.int64] = np.zeros(len(lists), np.int64)
    np.add.at(found, of, sizes.to_numpy(zero_copy_only=False))
    return found


Group = tuple[TopicPartition, int, Sender, Cost]
"""What a sender asks for in one window of a Kafka partition. A window is event time div ``window_ms``."""


def groups_of(
    messages: Mapping[str, pa.Array], quotas: QuotaSettings, uncounted: pa.Table | None = None
) -> Iterator[Group]:
    """What SDS messages take of quotas, summed up. ``messages`` has the columns ``ASKED``; ``uncounted``: the Kafka
    coordinates of messages that do not count."""
    window = pc.divide(messages["event_time"].cast(pa.int64()), quotas.window_ms * 1000)
    kept = {name: messages[name] for name in (*RECORD_KEY, *SENDER)}
    asked = pa.table({**kept, "window": window, **costs_of(messages)})
    if uncounted is not None:
        asked = asked.join(uncounted, [*RECORD_KEY], join_type="left anti")
    sums = asked.group_by([*RECORD_KEY[:2], "window", *SENDER]).aggregate([(name, "sum") for name in Cost._fields])
    for row in sums.to_pylist():
        sender = tuple(row[name] for name in SENDER)
        cost = Cost(*(row[f"{name}_sum"] for name in Cost._fields))
        yield (row["kafka_topic"], row["kafka_partition"]), row["window"], sender, cost


class Candidate(NamedTuple):
    """One message that asks to be admitted."""

    place: TopicPartition
    offset: int
    window: int
    sender: Sender
    cost: Cost


Topics = set[tuple[TopicPartition, Topic]]
"""Content topics of Kafka partitions."""


class Refused(NamedTuple):
    """One message above a quota, and whose."""

    place: TopicPartition
    offset: int
    detail: str


def no_pattern(content_topic: str, pubsub_topic: str) -> None:
    """Where no content topic is a pattern's."""


class _Window:
    """What was admitted in one window of a Kafka partition, and how many there are in each shared scope: senders in a
    channel, channels in a content topic, and so on."""

    def __init__(self) -> None:
        self.spent: dict[Scope, Cost] = {}
        self.members: dict[Scope, int] = {}

    def add(self, scopes: Sequence[Scope], cost: Cost) -> None:
        for scope, shared in zip(scopes, (*scopes[1:], None), strict=True):
            if shared is not None and scope not in self.spent:
                self.members[shared] = self.members.get(shared, 0) + 1
            self.spent[scope] = self.spent.get(scope, Cost()).plus(cost)


class QuotaUsage:
    """What was admitted so far, per Kafka partition, window and scope."""

    def __init__(self, quotas: QuotaSettings, pattern_of: PatternOf = no_pattern) -> None:
        self._quotas = quotas
        self._pattern_of = pattern_of
        self._windows: dict[tuple[TopicPartition, int], _Window] = {}

    def add(self, place: TopicPartition, window: int, sender: Sender, cost: Cost) -> None:
        """Count what was admitted."""
        self._windows.setdefault((place, window), _Window()).add(self._scopes(sender), cost)

    def judge(
        self,
        groups: Sequence[Group],
        candidates: Callable[[Topics], Iterable[Candidate]],
    ) -> list[Refused]:
        """Count what of a micro-batch is admitted; the others.

        ``groups`` are its messages summed by place, window and sender. ``candidates`` gives those of some content
        topics one by one, in record order of each partition; it is only asked for topics that could get above a quota.
        """
        above = self._could_exceed(groups)
        for place, window, sender, cost in groups:
            if (place, sender[:2]) not in above:
                self.add(place, window, sender, cost)
        in_order = sorted(candidates(above), key=lambda one: (one.place, one.offset)) if above else ()
        refused = [found for one in in_order if (found := self._refused(one))]
        latest: dict[TopicPartition, int] = {}
        for place, window, *_ in groups:
            latest[place] = max(window, latest.get(place, window))
        for key in [key for key in self._windows if key[1] < latest.get(key[0], key[1])]:
            del self._windows[key]  # event time never goes back
        return refused

    def _could_exceed(self, groups: Sequence[Group]) -> Topics:
        """The content topics of which a scope would be above its quota if all of ``groups`` were admitted."""
        sums = QuotaUsage(self._quotas, self._pattern_of)
        for group in groups:
            sums.add(*group)
        above = set()
        for key, asked in sums._windows.items():
            spent = self._windows[key].spent if key in self._windows else {}
            for scope, cost in asked.spent.items():
                if self._exceeded(scope, spent.get(scope, Cost()).plus(cost)) is not None:
                    above.add((key, scope))
        if not above:
            return set()
        return {
            (place, sender[:2])
            for place, window, sender, _ in groups
            if any(((place, window), scope) in above for scope in self._scopes(sender))
        }

    def _refused(self, candidate: Candidate) -> Refused | None:
        """Count one message, unless it is above a quota."""
        place, offset, window, sender, cost = candidate
        here = self._windows.setdefault((place, window), _Window())
        scopes = self._scopes(sender)
        for place_in, scope in enumerate(scopes):
            total = here.spent.get(scope, Cost()).plus(cost)
            why = self._exceeded(scope, total)
            if why is not None and not self._modest(here, scopes[: place_in + 1], cost, total):
                return Refused(place, offset, why)
        here.add(scopes, cost)
        return None

    def _modest(self, here: _Window, scopes: Sequence[Scope], cost: Cost, total: Cost) -> bool:
        """Whether the message is within an equal share of the last of ``scopes``, which stays within twice its quota:
        the share of one of its members, or of one of that member's own, and so on down to the sender."""
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

    def _exceeded(self, scope: Scope, cost: Cost) -> str | None:
        """Which quota ``cost`` is above, for people; ``None`` when it is not."""
        quota: Quota = getattr(self._quotas, scope[0])
        for what, used in zip(Cost._fields, cost, strict=True):
            limit = getattr(quota, what)
            if used > limit:
                return f"quotas.{scope[0]}.{what} is {limit} in {self._quotas.window_ms} ms"
        return None

    def _scopes(self, sender: Sender) -> tuple[Scope, ...]:
        """The smallest first: it is the one to be named, and a member of the next."""
        pattern = self._pattern_of(sender[1], sender[0])
        own = tuple((name, _digest(sender[:size])) for name, size in _OWN)
        shared = (("pattern", _digest((pattern,))),) if pattern is not None else ()
        return (*own, *shared, ("pubsub_topic", _digest(sender[:1])))


_OWN = (("sender", 4), ("channel", 3), ("content_topic", 2))


def _digest(names: tuple[str, ...]) -> bytes:
    return hashlib.blake2b(json.dumps(names).encode(), digest_size=16).digest()
