"""Generates garbage, forgeries and ordinary Waku traffic, each with the quarantine reason it must get.

Every recipe makes one record and the quarantine reason it must get (``docs/quarantine.md``), or ``None`` if it is not
an error. Recipes are used in turn, so a few dozen records contain every kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from reliable_channel.core.wire.malformed import Reason
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.simulation.journal import ObserverRecord
from reliable_channel.simulation.randomness import random_bytes, stream
from reliable_channel.simulation.scenario import ChannelPlan, Scenario


@dataclass(frozen=True, slots=True)
class _RecordContext:
    """Where and when a bad record is written: a channel's topic, the time, and bytes that make it unique."""

    plan: ChannelPlan
    at_ms: int
    salt: bytes

    def record(self, label: str, value: bytes | None, reason: Reason) -> ObserverRecord:
        return record_of(self.plan, self.at_ms, value, label=label, reason=reason.value)

    def envelope(self, payload: bytes, content_topic: str | None = None, meta: bytes | None = None) -> bytes:
        topic = self.plan.content_topic if content_topic is None else content_topic
        return encode_waku_message(WakuMessage(payload, topic, 0, self.at_ms * 1_000_000, meta))

    def sds(self, **changes: object) -> bytes:
        fields: dict[str, object] = {
            "sender_id": "mallory",
            "message_id": self.salt.hex(),
            "channel_id": self.plan.channel_id,
            "lamport_timestamp": self.at_ms,
            "content": b"forged " + self.salt,
        }
        return self.envelope(encode_sds_message(SdsMessage(**{**fields, **changes})))  # type: ignore[arg-type]


def relay_headers(pubsub_topic: str, source: str = "relay") -> tuple[tuple[str, bytes], ...]:
    """The Kafka headers of an envelope (14/WAKU2-MESSAGE)."""
    return (("pubsub_topic", pubsub_topic.encode()), ("source", source.encode()))


def record_of(
    plan: ChannelPlan, at_ms: int, value: bytes | None, source: str = "relay", label: str = "", **more: Any
) -> ObserverRecord:
    """The record of an envelope on a channel's topic; ``more``: other fields of :class:`ObserverRecord`."""
    headers = relay_headers(plan.pubsub_topic, source)
    return ObserverRecord(at_ms, plan.content_topic.encode(), value, headers, label=label, **more)


_RECIPES: tuple[Callable[[_RecordContext], ObserverRecord], ...] = (
    lambda p: p.record("null value", None, Reason.NULL_VALUE),
    lambda p: p.record("garbage bytes", b"\xff" * 40 + p.salt, Reason.MALFORMED_ENVELOPE),
    lambda p: p.record("truncated envelope", p.envelope(p.salt * 8)[:40], Reason.MALFORMED_ENVELOPE),
    lambda p: p.record("no content topic", p.envelope(p.salt, content_topic=""), Reason.EMPTY_CONTENT_TOPIC),
    lambda p: p.record("meta of 65 bytes", p.envelope(p.salt, meta=b"m" * 65), Reason.META_TOO_LONG),
    lambda p: p.record(
        "content topic is not UTF-8",
        p.envelope(p.salt, content_topic="@@@@").replace(b"@@@@", b"\xff\xfe\xfd\xfc"),
        Reason.MALFORMED_ENVELOPE,
    ),
    lambda p: p.record("garbage on a channel", p.envelope(b"\xff" * 40 + p.salt), Reason.MALFORMED_SDS),
    lambda p: p.record("SDS without an id", p.sds(message_id=""), Reason.SDS_WITHOUT_ID),
    lambda p: p.record("SDS without a channel", p.sds(channel_id=""), Reason.SDS_WITHOUT_CHANNEL),
    lambda p: p.record(
        "neither clock nor content", p.sds(lamport_timestamp=None, content=None), Reason.SDS_INVALID_KIND
    ),
    lambda p: p.record(
        "1001 history entries",
        p.sds(causal_history=tuple(HistoryEntry(f"{i:04d}") for i in range(1_001))),
        Reason.SDS_HISTORY_TOO_LONG,
    ),
    lambda p: p.record("Lamport 2^64 - 1", p.sds(lamport_timestamp=2**64 - 1), Reason.LAMPORT_OUT_OF_RANGE),
)


def bad_records(scenario: Scenario) -> Iterator[ObserverRecord]:
    """``scenario.bad_input`` records that must be quarantined, by number."""
    for number in range(scenario.bad_input):
        draw = stream(scenario.seed, "bad", number)
        plan = scenario.channels[draw.randrange(len(scenario.channels))]
        at_ms = scenario.start_ms + draw.randrange(max(1, plan.duration_ms))
        yield _RECIPES[number % len(_RECIPES)](
            _RecordContext(plan, at_ms, random_bytes(16, scenario.seed, "bad", number))
        )


def plain_waku_records(scenario: Scenario) -> Iterator[ObserverRecord]:
    """``scenario.plain_waku`` ordinary envelopes on a content topic that is no channel: kept, and no error."""
    topic = "/other-app/1/weather/json"
    for number in range(scenario.plain_waku):
        draw = stream(scenario.seed, "plain", number)
        at_ms = scenario.start_ms + draw.randrange(max(1, scenario.channels[0].duration_ms))
        payload = f'{{"station": {number}, "celsius": {draw.randint(-20, 40)}}}'.encode()
        value = encode_waku_message(WakuMessage(payload, topic, 0, at_ms * 1_000_000))
        headers = relay_headers(scenario.channels[0].pubsub_topic)
        yield ObserverRecord(at_ms, topic.encode(), value, headers, label="plain waku")
