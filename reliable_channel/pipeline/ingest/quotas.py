"""Quotas per sender, channel and content topic, in record order: values in, values out, no Spark (design.md *Budgets
before state*).

Per Kafka partition and window of event time a message is admitted when, with it, none of its three scopes is above its
quota; only what is admitted counts. So a sender who floods a channel uses up its own quota and nobody else's, and the
answer depends on the rows before it in the partition alone, wherever they are cut into micro-batches. What was admitted
stands in ``segments``: nothing else need be remembered.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import NamedTuple

from reliable_channel.config import Quota, QuotaSettings
from reliable_channel.pipeline.clock import Place

Sender = tuple[str, str, str, str]
"""Pubsub topic, content topic, channel id, sender id."""

Topic = tuple[str, str]
"""Pubsub topic, content topic."""

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


def cost_of(
    content_bytes: int | None,
    segment_kind: str | None,
    causal_history: Sized | None,
    repair_request: Sized | None,
) -> Cost:
    """What one SDS message takes."""
    segments = int(segment_kind in ("data", "parity"))
    return Cost(1, content_bytes or 0, segments, len(causal_history or ()) + len(repair_request or ()))


class Candidate(NamedTuple):
    """One message that asks to be admitted. ``window`` is its event time div ``window_ms``."""

    place: Place
    offset: int
    window: int
    sender: Sender
    cost: Cost


Group = tuple[Place, int, Sender, Cost]
"""What a sender asks for in one window of a Kafka partition."""

Topics = set[tuple[Place, Topic]]
"""Content topics of Kafka partitions."""


class Refused(NamedTuple):
    """One message above a quota, and whose."""

    place: Place
    offset: int
    detail: str


class Spent:
    """What was admitted so far, per Kafka partition, window and scope."""

    def __init__(self, quotas: QuotaSettings) -> None:
        self._quotas = quotas
        self._spent: dict[tuple[Place, int], dict[Scope, Cost]] = {}

    def add(self, place: Place, window: int, sender: Sender, cost: Cost) -> None:
        """Count what was admitted."""
        spent = self._spent.setdefault((place, window), {})
        for scope in _scopes(sender):
            spent[scope] = spent.get(scope, Cost()).plus(cost)

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
        refused = [r for candidate in (candidates(above) if above else ()) if (r := self._refused(candidate))]
        latest: dict[Place, int] = {}
        for place, window, *_ in groups:
            latest[place] = max(window, latest.get(place, window))
        for key in [key for key in self._spent if key[1] < latest.get(key[0], key[1])]:
            del self._spent[key]  # event time never goes back
        return refused

    def _could_exceed(self, groups: Sequence[Group]) -> Topics:
        """The content topics of which a scope would be above its quota if all of ``groups`` were admitted."""
        sums = Spent(self._quotas)
        for group in groups:
            sums.add(*group)
        above = {
            (key, scope)
            for key, asked in sums._spent.items()
            for scope, cost in asked.items()
            if self._exceeded(scope, self._spent.get(key, {}).get(scope, Cost()).plus(cost)) is not None
        }
        if not above:
            return set()
        return {
            (place, sender[:2])
            for place, window, sender, _ in groups
            if any(((place, window), scope) in above for scope in _scopes(sender))
        }

    def _refused(self, candidate: Candidate) -> Refused | None:
        """Count one message, unless it is above a quota."""
        place, offset, window, sender, cost = candidate
        spent = self._spent.get((place, window), {})
        for scope in _scopes(sender):
            why = self._exceeded(scope, spent.get(scope, Cost()).plus(cost))
            if why is not None:
                return Refused(place, offset, why)
        self.add(place, window, sender, cost)
        return None

    def _exceeded(self, scope: Scope, cost: Cost) -> str | None:
        """Which quota ``cost`` is above, for people; ``None`` when it is not."""
        quota: Quota = getattr(self._quotas, scope[0])
        for what, used in zip(Cost._fields, cost, strict=True):
            limit = getattr(quota, what)
            if used > limit:
                return f"quotas.{scope[0]}.{what} is {limit} in {self._quotas.window_ms} ms"
        return None


def _scopes(sender: Sender) -> tuple[Scope, ...]:
    """The smallest first: it is the one to be named."""
    return tuple((name, _digest(sender[:size])) for name, size in _SCOPES)


_SCOPES = (("sender", 4), ("channel", 3), ("content_topic", 2))


def _digest(names: tuple[str, ...]) -> bytes:
    return hashlib.blake2b(json.dumps(names).encode(), digest_size=16).digest()
