"""An in-memory network of SDS participants, on a clock of its own: tests drop and reorder, and never sleep."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TypeVar

from reliable_channel.core.sds import Delivered, Outgoing, SdsChannel, SdsEvent, SdsParameters, SdsStep
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, decode_sds_message
from tests.support.sds_inside import log_positions

T0 = 1_750_000_000_000
CHANNEL = "test-channel"
SMALL = FilterFormat(capacity=500)
"""A filter of 1 KB: what these tests are about does not depend on its size."""

E = TypeVar("E", bound=SdsEvent)


def small_config(**settings: object) -> SdsParameters:
    """A configuration with the small filter."""
    return SdsParameters(**{"filter_format": SMALL, **settings})  # type: ignore[arg-type]


def of_type(step: SdsStep, kind: type[E]) -> list[E]:
    """The events of one kind, in order."""
    return [event for event in step.events if isinstance(event, kind)]


def message(
    message_id: str,
    sender_id: str = "bob",
    lamport: int | None = T0 + 1,
    history: tuple[str, ...] = (),
    content: bytes | None = b"content",
    **fields: object,
) -> SdsMessage:
    """A message as a peer could have made it."""
    return SdsMessage(
        sender_id=sender_id,
        message_id=message_id,
        channel_id=CHANNEL,
        lamport_timestamp=lamport,
        causal_history=tuple(HistoryEntry(dependency) for dependency in history),
        content=content,
        **fields,  # type: ignore[arg-type]
    )


def filter_of(*ids: str) -> bytes:
    words = bytearray(SMALL.byte_count)
    SMALL.insert(words, ids)
    return SMALL.encode(words)


def opened(participant_id: str | None = "alice", **settings: object) -> SdsChannel:
    """A channel that has observed since T0."""
    channel = SdsChannel(CHANNEL, participant_id, small_config(**settings))
    channel.tick(T0)
    return channel


@dataclass
class Network:
    """Participants by name, and the copies in flight, one per recipient."""

    names: tuple[str, ...]
    config: SdsParameters = field(default_factory=small_config)
    now: int = T0

    def __post_init__(self) -> None:
        self.channels = {name: SdsChannel(CHANNEL, name, self.config) for name in self.names}
        self.in_flight: list[tuple[str, bytes]] = []
        self.events: dict[str, list[SdsEvent]] = {name: [] for name in self.names}
        self.sent: list[Outgoing] = []
        for name in self.names:
            self._take(name, self.channels[name].tick(self.now))

    def send(self, name: str, *contents: bytes) -> tuple[Outgoing, ...]:
        step = self.channels[name].send(list(contents), self.now)
        self._take(name, step)
        return step.outgoing

    def deliver(self, index: int = 0) -> None:
        """One copy arrives."""
        recipient, data = self.in_flight.pop(index)
        decoded = decode_sds_message(data, self.config.wire_family)
        assert not isinstance(decoded, Malformed)
        self._take(recipient, self.channels[recipient].receive(decoded, self.now, data=data))

    def deliver_all(self) -> None:
        while self.in_flight:
            self.deliver()

    def drop(self, index: int = 0) -> None:
        """One copy is lost."""
        del self.in_flight[index]

    def drop_all(self) -> None:
        self.in_flight.clear()

    def duplicate(self, index: int = 0) -> None:
        self.in_flight.append(self.in_flight[index])

    def reorder(self, seed: int) -> None:
        random.Random(seed).shuffle(self.in_flight)

    def advance(self, ms: int) -> None:
        """Time passes; nothing arrives meanwhile."""
        self.now += ms
        for name in self.names:
            self._take(name, self.channels[name].tick(self.now))

    def run(self, ms: int) -> None:
        """Time passes on a network without loss."""
        end = self.now + ms
        self.deliver_all()
        while True:
            due = min((at for name in self.names if (at := self.channels[name].next_due()) is not None), default=end)
            self.now = max(self.now, min(due, end))
            for name in self.names:
                self._take(name, self.channels[name].tick(self.now))
            self.deliver_all()
            if due >= end:
                return

    def logs(self) -> list[tuple[tuple[int, str], ...]]:
        return [log_positions(channel) for channel in self.channels.values()]

    def settled(self) -> bool:
        return len(set(self.logs())) == 1 and not any(channel.missing_ids() for channel in self.channels.values())

    def repair_from_store(self, seed: int = 0) -> None:
        """Everybody gets everything once more, in any order, as from a store that was asked for the whole time.

        Needed for the whole truth: SDS alone repairs what is named by someone, and with a history of two a message that
        was acknowledged by one participant may never be named to another.
        """
        for name in self.names:
            for outgoing in self.sent:
                if outgoing.message.sender_id != name and outgoing.message.content:
                    self.in_flight.append((name, outgoing.data))
        self.reorder(seed)
        self.deliver_all()

    def delivered(self, name: str) -> list[Delivered]:
        return [event for event in self.events[name] if isinstance(event, Delivered)]

    def join(self, name: str) -> None:
        """A participant begins; all that was sent before is on its way to it, too, as after a query of a store."""
        self.names = (*self.names, name)
        self.channels[name], self.events[name] = SdsChannel(CHANNEL, name, self.config), []
        self._take(name, self.channels[name].tick(self.now))
        self.in_flight.extend((name, outgoing.data) for outgoing in self.sent)

    def restart(self, name: str) -> None:
        """A participant comes back from its snapshot."""
        self.channels[name] = SdsChannel.from_bytes(self.channels[name].to_bytes(), self.config)

    def _take(self, name: str, step: SdsStep) -> None:
        self.events[name].extend(step.events)
        self.sent.extend(step.outgoing)
        for outgoing in step.outgoing:
            self.in_flight.extend((other, outgoing.data) for other in self.names if other != name)


def assert_causal(network: Network, name: str) -> None:
    """Nothing twice; nothing before what it depends on, unless that is marked."""
    histories = {
        outgoing.message.message_id: [entry.message_id for entry in outgoing.message.causal_history]
        for outgoing in network.sent
    }
    own = {outgoing.message.message_id for outgoing in network.sent if outgoing.message.sender_id == name}
    seen: set[str] = set()
    excused_before: set[str] = set()
    for event in network.delivered(name):
        assert event.message_id not in seen, "delivered twice"
        excused = {*event.lost_dependencies, *event.before_observation}
        for dependency in histories[event.message_id]:
            assert dependency in seen | own | excused, "delivered before what it depends on"
        assert event.late or event.message_id not in excused_before, "delivered without it, and it does not say so"
        seen.add(event.message_id)
        excused_before |= excused
    assert [event.sequence for event in network.delivered(name)] == list(range(1, len(seen) + 1))
