"""What the sample tables are about: the times, names and messages of their story, before they are rows."""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass

START = dt.datetime(2026, 11, 1, 12, tzinfo=dt.UTC)
AS_OF = START + dt.timedelta(hours=2)
"""How far the recorded clock read: an hour after the last message."""
PUBSUB_TOPIC = "/waku/2/rs/1/0"
KAFKA_TOPIC = "waku.envelopes"
STORE_NODES = ("http://store-a:8645", "http://store-b:8645")

HOSTILE = (
    "<script>alert('x')</script>",
    '"onload="alert(1)" x="',
    "=cmd|' /C calc'!A0",
    "\x1b[2J\x1b]0;owned\x07\x9b31m",
    "abc\u202efdp.exe\u2066",
    "line one\nline two\r\ttabbed",
    "[bold red]rich[/bold red] {{ 7 * 7 }} ${x} %s",
    "'; DROP TABLE acks; --",
    "very long " * 100,
    "\U0001f600" * 60,
    "constructor",
)
"""Strings that break careless output: used as channel ids, senders, SDS ids and content topics."""


def topic_of(channel_id: str) -> str:
    return f"/reliable-channel/1/{channel_id}/proto"


def digest(*parts: object) -> bytes:
    """32 bytes that stand for a hash."""
    return hashlib.sha256(repr(parts).encode()).digest()


def at(seconds: float) -> dt.datetime:
    """A moment of the story, in seconds since its start."""
    return START + dt.timedelta(seconds=seconds)


@dataclass(frozen=True)
class SegmentFacts:
    """One SDS message of an application message: a bare payload, a data or a parity segment."""

    sds_id: str
    kind: str
    index: int | None
    lamport: int
    sent_s: float
    envelope_hash: bytes
    arrived: bool


@dataclass(frozen=True)
class Message:
    """One application message, as it was sent and as it fared."""

    name: str
    channel_id: str
    content_topic: str
    sender: str
    payload: bytes
    payload_hash: bytes
    data_count: int
    parity_count: int
    parts: tuple[SegmentFacts, ...]
    delivered_s: float | None
    late: bool
    history: tuple[tuple[str, bytes, str], ...]

    @property
    def sds_ids(self) -> list[str]:
        return [part.sds_id for part in self.parts]

    @property
    def last(self) -> SegmentFacts:
        return self.parts[-1]

    def indexes_held(self, kind: str) -> list[int]:
        return [p.index for p in self.parts if p.arrived and p.kind == kind and p.index is not None]
