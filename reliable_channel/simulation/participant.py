"""Connects the real protocol core to a simulated application and network: one participant on one channel.

Channels are encrypted with the real cipher. A simulated conversation must be the same byte for byte at every run, so
keys are not secret, and nonces are derived from the encrypted content.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

from reliable_channel.channel.inbox import Inbox
from reliable_channel.core.aes_gcm import NONCE_BYTES, EncryptionLayer, decrypt, encrypt, key_id
from reliable_channel.core.sds import Buffered, Delivered, Outgoing, SdsChannel, SdsParameters, SdsStep
from reliable_channel.core.sds.verify import id_verified
from reliable_channel.core.segmentation import SegmentationConfig, split
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsMessage, WireFamily, decode_sds_message
from reliable_channel.core.wire.segment import encode_segment
from reliable_channel.core.wire.waku import (
    RELIABLE_CHANNEL_META,
    WakuMessage,
    decode_waku_message,
    encode_waku_message,
    message_hash,
)
from reliable_channel.simulation.faults import hash_to_announce
from reliable_channel.simulation.scenario import ChannelPlan, Fault
from reliable_channel.simulation.workload import PlannedMessage

ACKNOWLEDGE_WITHIN_MS = 1_500
"""Nearly twice the default: with fewer sync messages some messages leave no trace, which the demo has to show."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """One dispatched envelope: its bytes, its message hash, and the SDS message in it."""

    data: bytes
    hash: bytes
    sds_id: str


@dataclass(frozen=True, slots=True)
class SentSegments:
    """The result of sending one message: how many segments of which kind, and what to dispatch."""

    step: SdsStep
    data_count: int
    parity_count: int


def sds_config(family: WireFamily, **settings: Any) -> SdsParameters:
    """The SDS parameters of a wire family, as our participants and the observer use them when it is configured.
    ``settings`` are further fields."""
    return SdsParameters(**settings).in_family(family)


class SimulatedParticipant:
    """A sender and receiver on one channel; ``sds`` has its timers. Times are virtual Unix ms."""

    def __init__(self, name: str, plan: ChannelPlan) -> None:
        self.name = name
        self._plan = plan
        self._segmentation = SegmentationConfig(
            segment_size_bytes=plan.segment_size,
            enable_reed_solomon=plan.parity_rate is not None,
            parity_rate=plan.parity_rate or 0.125,
        )
        own = {"wait_for_sent": plan.rate_limit is not None, "acknowledge_within_ms": ACKNOWLEDGE_WITHIN_MS}
        config = sds_config(plan.family, **{**own, **dict(plan.sds)})
        foreign = dict(plan.foreign).get(name)
        self.sds: SdsChannel = (
            SdsChannel(plan.channel_id, name, config) if foreign is None else foreign(plan.channel_id, name)
        )
        keys = (channel_key(plan), unknown_key(plan))
        self._cipher = RepeatableAesGcm(plan, keys) if plan.encrypted else None
        self._other_cipher = RepeatableAesGcm(plan, keys[::-1]) if plan.encrypted else None
        inside = plan.encryption_layer is EncryptionLayer.INSIDE_SDS
        self._inside = self._cipher if inside else None
        self._around = None if inside else self._cipher
        # Without parity, and where ids are those of ciphertexts, the segments of a message show no other of its ids.
        repairs = plan.parity_rate is not None and self._inside is None and foreign is None
        self._inbox = Inbox(plan.channel_id, plan.content_topic, self._segmentation) if repairs else None
        self._last_timestamp_ns = 0

    def send_message(self, message: PlannedMessage, now: int, fault: Fault | None = None) -> SentSegments:
        """Send one application message: segment it and wrap every segment."""
        if message.ephemeral:
            return SentSegments(self.sds.send_ephemeral(self._encrypt_inside(message.payload), now), 1, 0)
        segments = split(message.payload, self._segmentation)
        if fault is Fault.HASH_MISMATCH:
            wrong = hash_to_announce(message.payload, fault)
            segments = [replace(segment, entire_message_hash=wrong) for segment in segments]
        data_count = sum(not segment.is_parity for segment in segments)
        contents = [self._encrypt_inside(encode_segment(segment), fault) for segment in segments]
        step = self.sds.send(contents, now, required=data_count)
        return SentSegments(step, data_count, len(segments) - data_count)

    def _encrypt_inside(self, content: bytes, fault: Fault | None = None) -> bytes:
        if self._inside is None:
            return content
        used = self._other_cipher if fault is Fault.UNDECRYPTABLE and self._other_cipher else self._inside
        return used.encrypt(content)

    def wrap(self, outgoing: Outgoing, now: int, dispatched: bool = True, under_unknown_key: bool = False) -> Envelope:
        """A fresh envelope around an SDS message (14/WAKU2-MESSAGE: built at dispatch, never the same bytes twice)."""
        used = self._other_cipher if under_unknown_key and self._around is not None else self._around
        self._last_timestamp_ns = max(now * 1_000_000, self._last_timestamp_ns + 1)
        ephemeral = outgoing.message.lamport_timestamp is None
        waku = WakuMessage(
            payload=outgoing.data if used is None else used.encrypt(outgoing.data),
            content_topic=self._plan.content_topic,
            version=0,
            timestamp=self._last_timestamp_ns,
            meta=RELIABLE_CHANNEL_META,
            ephemeral=True if ephemeral else None,
        )
        digest = message_hash(self._plan.pubsub_topic, waku)
        if dispatched and not ephemeral:
            self.sds.record_sent(outgoing.message.message_id, now, retrieval_hint=digest)
        return Envelope(encode_waku_message(waku), digest, outgoing.message.message_id)

    def receive(self, envelope: Envelope, now: int) -> SdsStep:
        """Receive an envelope and unwrap it as any receiver would."""
        waku = decode_waku_message(envelope.data)
        if isinstance(waku, Malformed):
            raise AssertionError(f"a participant's own envelope is malformed: {waku}")
        data = waku.payload if self._around is None else self._around.decrypt(waku.payload)
        message = decode_sds_message(data, self._plan.family)
        if isinstance(message, Malformed):
            raise AssertionError(f"a participant's own SDS message is malformed: {message}")
        return self._take(message, now, envelope.hash, data)

    def receive_bytes(self, data: bytes, now: int) -> SdsStep:
        """Receive envelope bytes of a stranger; undecodable bytes have no effect."""
        waku = decode_waku_message(data)
        message = waku if isinstance(waku, Malformed) else decode_sds_message(waku.payload, self._plan.family)
        if isinstance(waku, Malformed) or isinstance(message, Malformed):
            return SdsStep((), ())
        digest = message_hash(self._plan.pubsub_topic, waku)
        return self._take(message, now, digest, waku.payload)

    def _take(self, message: SdsMessage, now: int, envelope_hash: bytes, data: bytes) -> SdsStep:
        plaintext = self._inside.decrypt(message.content) if self._inside and message.content else None
        verified = id_verified(message, self._plan.family, plaintext, self.name)
        step = self.sds.receive(message, now, retrieval_hint=envelope_hash, data=data, id_verified=verified)
        return step if self._inbox is None else self._repair(self._inbox, message, step, now)

    def _repair(self, inbox: Inbox, message: SdsMessage, step: SdsStep, now: int) -> SdsStep:
        """Count what parity rebuilds as received, as a reliable channel does (*verified repair*)."""
        for event in step.events:
            if isinstance(event, Delivered | Buffered) and event.message_id == message.message_id:
                inbox.accept(message, now, repeat=event.repeat)
        while rebuilt := inbox.take_repairs(self.sds.missing_ids()):
            for segment in rebuilt:
                more = self.sds.receive(segment, now, repaired=True, id_verified=True)
                step = SdsStep(step.outgoing + more.outgoing, step.events + more.events)
        return step


@dataclass(frozen=True)
class RepeatableAesGcm:
    """AES-GCM for one channel that encrypts the same bytes to the same bytes: the first of ``keys`` encrypts, all
    decrypt."""

    plan: ChannelPlan
    keys: tuple[bytes, ...]

    def encrypt(self, content: bytes) -> bytes:
        """Encrypt ``content`` with the first key."""
        nonce = hashlib.sha256(content).digest()[:NONCE_BYTES]
        return encrypt(
            self.keys[0], nonce, (self.plan.pubsub_topic, self.plan.content_topic), content, self.plan.encryption_layer
        )

    def decrypt(self, payload: bytes) -> bytes:
        """Decrypt. Raises :class:`~reliable_channel.core.aes_gcm.DecryptionRefusedError` for anything else."""
        by_id = {key_id(key): key for key in self.keys}
        return decrypt(by_id, (self.plan.pubsub_topic, self.plan.content_topic), payload, self.plan.encryption_layer)


def channel_key(plan: ChannelPlan) -> bytes:
    """The key (32 bytes) of a channel, which its observer is given too."""
    return hashlib.sha256(f"key of {plan.channel_id}".encode()).digest()


def unknown_key(plan: ChannelPlan) -> bytes:
    """A key (32 bytes) that all participants have and the observer has not."""
    return hashlib.sha256(f"new key of {plan.channel_id}".encode()).digest()
