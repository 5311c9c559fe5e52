"""Participants on an in-memory network in virtual time: nobody sleeps, everything is repeatable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from reliable_channel.channel import ChannelEvent, ReliableChannel, ReliableChannelConfig, create_reliable_channel
from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.segmentation.lifetime import compute_lifetime
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.memory import Link, MemoryNetwork, MemoryNode, perfect_link

TOPIC = "/reliable-channel/1/tests/proto"
CHANNEL = "lobby"
SMALL_FILTER = FilterFormat(capacity=200)
"""Small filters keep the tests fast; the rules do not depend on the size."""

NEVER_MS = 10**8

AnyEvent = TypeVar("AnyEvent", bound=ChannelEvent)


def quick(**changes: Any) -> ReliableChannelConfig:
    """A configuration for tests: no pause between batches, small filters; ``sds`` takes a mapping. Sets are kept as
    long as a sender that practically never retransmits (``acknowledgement_timeout_ms`` of days) needs."""
    sds = replace(SdsParameters(filter_format=SMALL_FILTER), **changes.pop("sds", {}))
    config = replace(ReliableChannelConfig(process_task_min_elapse_ms=0, sds=sds), **changes)
    if sds.acknowledgement_timeout_ms < NEVER_MS:
        return config
    needed = compute_lifetime(config.segmentation, sds, config.rate_limit).total_ms
    return replace(config, segmentation=replace(config.segmentation, max_set_lifetime_ms=needed))


def fail_with(error: Exception) -> Callable[..., Any]:
    """A function that raises ``error``."""

    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


class Recorder:
    """A channel and everything it told."""

    def __init__(self, channel: ReliableChannel) -> None:
        self.channel = channel
        self.events: list[ChannelEvent] = []
        channel.on(ChannelEvent, self.events.append)

    def of(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def payloads(self) -> list[bytes]:
        from reliable_channel.channel import MessageReceived

        return [event.message for event in self.of(MessageReceived)]

    def problems(self) -> list[str]:
        from reliable_channel.channel import ChannelProblem

        return [event.kind for event in self.of(ChannelProblem)]


class World:
    """Several participants. ``link`` decides about every delivery; ``block(*names)`` cuts nodes off."""

    def __init__(self, link: Link = perfect_link) -> None:
        self.network = MemoryNetwork(link=self._deliver)
        self.link = link
        self.blocked: set[str] = set()
        self.recorders: dict[str, Recorder] = {}
        self.on_wire: list[tuple[str, WakuMessage]] = []

    def _deliver(self, sender: str, receiver: str, message: WakuMessage) -> Any:
        self.on_wire.append((sender, message))
        if sender in self.blocked or receiver in self.blocked:
            return ()
        return self.link(sender, receiver, message)

    @property
    def now(self) -> int:
        return self.network.clock.now_ns() // 1_000_000

    def node(self, name: str) -> MemoryNode:
        node = self.network.node(name)
        node.start()
        return node

    def join(self, name: str, config: ReliableChannelConfig | None = None, **options: Any) -> Recorder:
        """Open the channel for a participant (again, after it crashed or closed)."""
        channel = create_reliable_channel(
            self.node(name),
            options.pop("channel_id", CHANNEL),
            options.pop("content_topic", TOPIC),
            options.pop("sender_id", name),
            config=config or quick(),
            clock=options.pop("clock", self.network.clock),
            threaded=False,
            **options,
        )
        self.recorders[name] = Recorder(channel)
        return self.recorders[name]

    def run(self, ms: int, step_ms: int = 100) -> None:
        """Let virtual time pass; every participant gets a turn every ``step_ms``."""
        for _ in range(max(1, ms // step_ms)):
            self.turn()
            self.network.run(step_ms)
        self.turn()

    def turn(self) -> None:
        for recorder in list(self.recorders.values()):
            recorder.channel.step()
        self.network.pump()
        for recorder in list(self.recorders.values()):
            recorder.channel.step()

    def close(self) -> None:
        for recorder in self.recorders.values():
            recorder.channel.close()


def drop(count: int) -> Link:
    """A link that loses the next ``count`` deliveries and then none."""
    left = [count]

    def deliver(_sender: str, _receiver: str, _message: WakuMessage) -> tuple[float, ...]:
        if left[0] > 0:
            left[0] -= 1
            return ()
        return (0.0,)

    return deliver
