"""Computes what the store nodes of a simulation return at the end, and the truth that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reliable_channel.simulation.bad_input import record_of
from reliable_channel.simulation.journal import ObserverRecord
from reliable_channel.simulation.judge import judge
from reliable_channel.simulation.truth import Truth
from reliable_channel.simulation.world import World


def give_back(world: World, hashes: Sequence[bytes], at_ms: int) -> list[ObserverRecord]:
    """The records that reach the observer at ``at_ms`` (virtual Unix ms) when its stores return these envelopes."""
    held = {
        hash_: (journal.plan, kept)
        for journal in world.journals
        for envelopes in journal.stored.values()
        for hash_, kept in envelopes.items()
    }
    return [
        record_of(plan, at_ms, kept.data, "store", plan.channel_id, sds_id=kept.sds_id)
        for plan, kept in map(held.__getitem__, hashes)
    ]


def truth_with(world: World, later: Sequence[ObserverRecord]) -> Truth:
    """The truth when ``later`` (of :func:`give_back`) reached the observer after everything else."""
    journals = [
        replace(journal, observed=[*journal.observed, *(r for r in later if r.label == journal.plan.channel_id)])
        for journal in world.journals
    ]
    return judge(journals, [*world.records, *later])
