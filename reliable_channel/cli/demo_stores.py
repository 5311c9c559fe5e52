"""Serves the store nodes of a simulated conversation over HTTP, as real ones are served."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import decode_waku_message
from reliable_channel.simulation.world import World
from reliable_channel.transport.http.server import serve_in_thread
from reliable_channel.transport.store.memory_source import MemorySource
from reliable_channel.transport.store.server import create_app


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
