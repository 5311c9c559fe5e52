"""What a step of a channel wants done: by the node, by the store, by the application. Values; the driver does them."""

from __future__ import annotations

from dataclasses import dataclass

from reliable_channel.channel.events import ChannelEvent, MessageReceived, SendEvent
from reliable_channel.sds import Outgoing


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Dispatch one SDS message in a fresh envelope. ``counts``: it is the first dispatch of the first segment of a
    message, the only one that the rate limit counts (protocol.md §6). ``send_id`` is ``None`` for control traffic."""

    outgoing: Outgoing
    send_id: str | None = None
    message_id: str = ""
    total: int = 1
    counts: bool = False
    ephemeral: bool = False

    @property
    def sds_id(self) -> str:
        return self.outgoing.message.message_id


@dataclass(frozen=True, slots=True)
class Emit:
    """Tell the application."""

    event: ChannelEvent

    @property
    def mark(self) -> str:
        """What is noted once the event was told; empty for what no restart tells again."""
        return f"{self.event.name} {self.event.request_id}" if isinstance(self.event, SendEvent) else ""


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand a received message over: ``key`` is the same whenever this delivery comes up again, and empty for an
    ephemeral one, which nobody keeps."""

    key: str
    message: MessageReceived

    @property
    def mark(self) -> str:
        """What is noted once the message was told."""
        return f"{self.message.name} {self.key}" if self.key else ""


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask a store for a missing segment. ``attempt`` counts from 1."""

    sds_id: str
    retrieval_hint: bytes | None
    attempt: int


Effect = Dispatch | Emit | Deliver | Fetch
