"""Models directed lossy links: loss (independent or bursty), duplication, reordering, delay, partitions; and when
participants may dispatch: while they are awake, and within a rate limit by epochs."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from reliable_channel.simulation.randomness import stream
from reliable_channel.simulation.scenario import ChannelPlan, LinkQuality, Partition

OBSERVER = "observer"
"""The name of the observer (the pipeline) on the network."""


def are_separated(partitions: tuple[Partition, ...], since_start_ms: int, sender: str, receiver: str) -> bool:
    """Whether a partition keeps the two apart at that time (ms after the start of the scenario)."""
    return any(
        p.start_ms <= since_start_ms < p.end_ms
        and (sender in p.members) != (receiver in p.members)
        and not (p.is_observed and receiver == OBSERVER)
        for p in partitions
    )


@dataclass(slots=True)
class Link:
    """One directed link. :meth:`carry` returns after how many ms each copy of an envelope arrives: none when it is
    lost, two when it is duplicated. The draws depend on the link and the number of the envelope on it."""

    quality: LinkQuality
    seed: int
    name: tuple[str, ...]
    _carried: int = 0
    _bad: bool = field(default=False)

    def carry(self) -> list[int]:
        """Carry one envelope: the delays (ms) of the copies that arrive."""
        draw = stream(self.seed, "link", *self.name, self._carried)
        self._carried += 1
        lost = draw.random() < self.quality.loss
        if self._is_lost_in_burst(draw) or lost:
            return []
        copies = 2 if draw.random() < self.quality.duplicate else 1
        return [self._draw_delay(draw) for _ in range(copies)]

    def _is_lost_in_burst(self, draw: random.Random) -> bool:
        burst = self.quality.burst
        if burst is None:
            return False
        turn = draw.random()
        self._bad = turn >= burst.bad_to_good if self._bad else turn < burst.good_to_bad
        return draw.random() < (burst.loss_bad if self._bad else burst.loss_good)

    def _draw_delay(self, draw: random.Random) -> int:
        quality = self.quality
        jitter = draw.expovariate(1 / quality.jitter_ms) if quality.jitter_ms else 0.0
        held = quality.reorder_ms if draw.random() < quality.reorder else 0
        return max(1, quality.delay_ms + int(jitter) + held)


class DispatchTimes:
    """Virtual Unix ms. Epochs are counted from time 0, as those of RLN are."""

    def __init__(self, plan: ChannelPlan, start_ms: int) -> None:
        self._limit = plan.rate_limit
        self._sleeps: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for nap in sorted(plan.sleeps, key=lambda nap: nap.start_ms):
            self._sleeps[nap.participant].append((start_ms + nap.start_ms, start_ms + nap.end_ms))
        self._taken: Counter[tuple[str, int]] = Counter()

    def awake_at(self, name: str, now: int) -> int:
        """The first time from ``now`` on at which a participant is awake."""
        for begin, end in self._sleeps[name]:
            if begin <= now < end:
                now = end
        return now

    def has_room(self, name: str, now: int) -> bool:
        """Whether a participant may dispatch now, without a wait."""
        return self._find_free(name, now) == now

    def take(self, name: str, now: int) -> int:
        """Take the first free place from ``now`` on; returns its time."""
        at = self._find_free(name, now)
        if self._limit is not None:
            self._taken[name, at // self._limit.epoch_ms] += 1
        return at

    def _find_free(self, name: str, now: int) -> int:
        at = self.awake_at(name, now)
        while self._limit is not None and self._taken[name, at // self._limit.epoch_ms] >= self._limit.envelopes:
            at = self.awake_at(name, (at // self._limit.epoch_ms + 1) * self._limit.epoch_ms)
        return at
