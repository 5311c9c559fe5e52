"""Decides when the participants of a channel may dispatch: while they are awake, and within a rate limit by epochs."""

from __future__ import annotations

from collections import Counter, defaultdict

from reliable_channel.simulation.scenario import ChannelPlan


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
