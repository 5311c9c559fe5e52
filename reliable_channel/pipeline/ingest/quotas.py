"""Quotas per sender, channel, content topic, pattern of content topics and pubsub topic, in record order: values in,
values out, no Spark.

Per Kafka partition and window of event time a message is admitted when, with it, none of its scopes is above its
quota; only what is admitted counts. So a sender who floods a channel uses up its own quota and nobody else's. Names are
free to invent, so what many share could still be used up by strangers: above the quota of a shared scope those are
admitted who have no more than an equal share of it, up to twice the quota. The answer depends on the rows before it in
the partition alone, wherever they are cut into micro-batches. What was admitted stands in ``segments``: nothing else
need be remembered.
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


class Spent:
    """What was admitted so far, per Kafka partition, window and scope."""

    def __init__(self, quotas: QuotaSettings, pattern_of: PatternOf = no_pattern) -> None:
        self._quotas = quotas
        self._pattern_of = pattern_of
        self._windows: dict[tuple[Place, int], _Window] = {}

    def add(self, place: Place, window: int, sender: Sender, cost: Cost) -> None:
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
        latest: dict[Place, int] = {}
        for place, window, *_ in groups:
            latest[place] = max(window, latest.get(place, window))
        for key in [key for key in self._windows if key[1] < latest.get(key[0], key[1])]:
            del self._windows[key]  # event time never goes back
        return refused

    def _could_exceed(self, groups: Sequence[Group]) -> Topics:
        """The content topics of which a scope would be above its quota if all of ``groups`` were admitted."""
        sums = Spent(self._quotas, self._pattern_of)
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
