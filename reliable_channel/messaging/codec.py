"""Encodes an application's message into an envelope on one pubsub and content topic, and decodes it (MESSAGING-API,
``Encoder``, ``Decoder``, ``Message``).

The specification leaves the kinds of encoders open. :class:`PlainEncoder` and :class:`PlainDecoder` change nothing but
the topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from reliable_channel.core.wire.waku import WakuMessage


@dataclass(frozen=True, slots=True)
class Message:
    """A message of an application. ``timestamp`` is Unix time in ns; the encoder sets fields that are None."""

    payload: bytes
    meta: bytes | None = None
    timestamp: int | None = None
    ephemeral: bool | None = None


class Encoder(Protocol):
    """Encodes a message into an envelope, and states its topics."""

    @property
    def pubsub_topic(self) -> str:
        """The pubsub topic it is sent on."""

    @property
    def content_topic(self) -> str:
        """The content topic it is sent under."""

    def encode(self, message: Message) -> WakuMessage:
        """The envelope; a ``timestamp`` of None is set at dispatch, fresh (14/WAKU2-MESSAGE). May raise."""


class Decoder(Protocol):
    """Selects the messages of a subscription and decodes them."""

    @property
    def pubsub_topic(self) -> str:
        """The pubsub topic it listens on."""

    @property
    def content_topic(self) -> str:
        """The content topic it listens to."""

    def decode(self, message: WakuMessage) -> WakuMessage | None:
        """The decoded message, or None for one that is not for this decoder. May raise; the record's ``error`` then
        states the reason."""


@dataclass(frozen=True, slots=True)
class PlainEncoder:
    """Sends the payload unchanged; ``meta``, ``ephemeral`` and ``version`` apply where the message has none."""

    pubsub_topic: str
    content_topic: str
    meta: bytes | None = None
    ephemeral: bool | None = None
    version: int | None = None

    def encode(self, message: Message) -> WakuMessage:
        """A timestamp of 0 means *omitted*, as in ``MessageRecord`` of MESSAGING-API."""
        return WakuMessage(
            payload=message.payload,
            content_topic=self.content_topic,
            version=self.version,
            timestamp=message.timestamp or None,
            meta=self.meta if message.meta is None else message.meta,
            ephemeral=self.ephemeral if message.ephemeral is None else message.ephemeral,
        )


@dataclass(frozen=True, slots=True)
class PlainDecoder:
    """Accepts every message of its content topic unchanged."""

    pubsub_topic: str
    content_topic: str

    def decode(self, message: WakuMessage) -> WakuMessage | None:
        """None for another content topic."""
        return message if message.content_topic == self.content_topic else None
