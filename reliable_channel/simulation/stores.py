"""Serves the store nodes of a simulated conversation over HTTP, as real ones are served, and computes what they return
at the end, and the truth that follows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import decode_waku_message
from reliable_channel.simulation.bad_input import record_of
from reliable_channel.simulation.journal import ObserverRecord
from reliable_channel.simulation.judge import judge
from reliable_channel.simulation.truth import Truth
from reliable_channel.simulation.world import World
from reliable_channel.transport.http.server import serve_in_thread
from reliable_channel.transport.store.server import create_app
from reliable_channel.transport.store.source import MemorySource


@contextmanager
def store_nodes(world: World) -> Iterator[list[str]]:
    """Serve every store of the scenario on a free port of loopback for this block; their addresses."""
    with ExitStack() as running:
        yield [
            running.enter_context(serve_in_thread(create_app(archive(world, plan.name))))
            for plan in world.scenario.stores
        ]


def archive(world: World, store: str) -> MemorySource:
    """The envelopes that one store of the scenario holds."""
    source = MemorySource()
    for journal in world.journals:
        for kept in journal.stored[store].values():
            message = decode_waku_message(kept.data)
            if not isinstance(message, Malformed):
                source.add(journal.plan.pubsub_topic, message)
    return source


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
