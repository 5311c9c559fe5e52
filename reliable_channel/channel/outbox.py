"""What the application is still to be told: events with the note that follows them, and their bytes in a snapshot."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from reliable_channel.channel.effects import Deliver, Emit
from reliable_channel.channel.events import (
    ChannelEvent,
    MessageDelivered,
    MessageReceived,
    MessageSendError,
    MessageSent,
    SendEvent,
)
from reliable_channel.wire._pb import channel_state_pb2 as pb
from reliable_channel.wire.hashing import keccak256

MAX_UNHEARD = 1_000
MAX_UNHEARD_BYTES = 16 * 1024 * 1024
"""Messages, and bytes of them, that wait for somebody to listen; beyond that the oldest count as told."""


@dataclass(frozen=True, slots=True)
class Telling:
    """An event for the application. ``mark`` is noted once it was told, and empty for what no restart tells again."""

    event: ChannelEvent
    mark: str = ""

    @property
    def size(self) -> int:
        """Payload bytes."""
        return len(self.event.message) if isinstance(self.event, MessageReceived) else 0


class Unheard:
    """What waits for somebody to listen, in order; bounded."""

    def __init__(self) -> None:
        self._waiting: deque[Telling] = deque()
        self._bytes = 0

    def add(self, telling: Telling) -> list[Telling]:
        """Let one wait; the oldest that had to go for it."""
        self._waiting.append(telling)
        self._bytes += telling.size
        gone: list[Telling] = []
        while len(self._waiting) > MAX_UNHEARD or self._bytes > MAX_UNHEARD_BYTES:
            gone.append(self._waiting.popleft())
            self._bytes -= gone[-1].size
        return gone

    def take(self, listens: Callable[[ChannelEvent], bool]) -> Telling | None:
        """The first that somebody listens for."""
        for telling in self._waiting:
            if listens(telling.event):
                self._waiting.remove(telling)
                self._bytes -= telling.size
                return telling
        return None

    def __iter__(self) -> Iterator[Telling]:
        return iter(self._waiting)


def telling_of(effect: Deliver | Emit) -> Telling:
    """What an effect gives the application to know."""
    return Telling(effect.message if isinstance(effect, Deliver) else effect.event, effect.mark)


def untold_states(tellings: Iterable[Telling]) -> Iterator[pb.UntoldState]:
    """Everything that has a mark; the links of a message's segments (``chunks``) are not kept."""
    for telling in tellings:
        event = telling.event
        state = pb.UntoldState(mark=telling.mark, at=event.at)
        if isinstance(event, MessageReceived):
            state.received.payload = event.message
            state.received.sender_id = event.sender_id
            state.received.sds_id = event.sds_id
            state.received.late = event.late
            state.received.lost_dependencies.extend(event.lost_dependencies)
            if event.lamport_timestamp is not None:
                state.received.lamport_timestamp = event.lamport_timestamp
        elif isinstance(event, SendEvent):
            sent = pb.UntoldSend(request_id=event.request_id, message_id=event.message_id)
            match event:
                case MessageDelivered():
                    sent.after_error = event.after_error
                    state.delivered.CopyFrom(sent)
                case MessageSendError():
                    sent.error = event.error
                    state.error.CopyFrom(sent)
                case _:
                    state.sent.CopyFrom(sent)
        if telling.mark and state.WhichOneof("event") is not None:
            yield state


def tellings_of(states: Iterable[pb.UntoldState], channel_id: str, content_topic: str) -> Iterator[Telling]:
    """The tellings of a snapshot, their messages not numbered yet."""
    for state in states:
        event = _event(state, channel_id, content_topic)
        if event is not None:
            yield Telling(event, state.mark)


def _event(state: pb.UntoldState, channel_id: str, content_topic: str) -> ChannelEvent | None:
    at = state.at
    match state.WhichOneof("event"):
        case "received":
            kept = state.received
            return MessageReceived(
                channel_id=channel_id,
                at=at,
                message=kept.payload,
                message_id=keccak256(kept.payload).hex(),
                sender_id=kept.sender_id,
                content_topic=content_topic,
                sequence=0,
                sds_id=kept.sds_id,
                lamport_timestamp=kept.lamport_timestamp if kept.HasField("lamport_timestamp") else None,
                late=kept.late,
                lost_dependencies=tuple(kept.lost_dependencies),
            )
        case "sent":
            ids = (state.sent.request_id, state.sent.message_id)
            return MessageSent(channel_id=channel_id, at=at, request_id=ids[0], message_id=ids[1], request_ids=())
        case "delivered":
            done = state.delivered
            return MessageDelivered(
                channel_id=channel_id,
                at=at,
                request_id=done.request_id,
                message_id=done.message_id,
                after_error=done.after_error,
            )
        case "error":
            failed = state.error
            return MessageSendError(
                channel_id=channel_id,
                at=at,
                request_id=failed.request_id,
                message_id=failed.message_id,
                error=failed.error,
            )
    return None
