"""Queues and decrypts the envelopes that a channel receives: the first stage of *Incoming message processing* in
RELIABLE-CHANNEL-API.

Envelopes wait in :class:`Arrivals` and are decrypted here; SDS, reassembly and delivery belong to the state machine.
Input is hostile: every refusal is an event, nothing raises, and the queue is bounded.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable

from reliable_channel.channel.encryption import ChannelEncryption
from reliable_channel.channel.events import ChannelProblem
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.steps import EnvelopeReceived
from reliable_channel.core.aes_gcm import NoCiphertextError
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.sds import decode_sds_message
from reliable_channel.transport.base import ReceivedEnvelope


class EnvelopeReader:
    """Reads the SDS message of a received envelope, in both layers of encryption."""

    def __init__(self, machine: ChannelMachine, pubsub_topic: str, encryption: ChannelEncryption | None) -> None:
        self._machine = machine
        self._pubsub_topic = pubsub_topic
        self._encryption = encryption

    def decrypt(self, envelope: ReceivedEnvelope, now: int) -> EnvelopeReceived | ChannelProblem | None:
        """The SDS message of an envelope; ``None`` for other topics' envelopes; a problem for an envelope that cannot
        be read."""
        if envelope.message.content_topic != self._machine.content_topic or envelope.pubsub_topic != self._pubsub_topic:
            return None
        payload, encryption = envelope.message.payload, self._encryption
        if encryption is None:
            return EnvelopeReceived(now, payload, envelope.message_hash)
        try:
            return EnvelopeReceived(now, encryption.around.decrypt(payload), envelope.message_hash)
        except Exception as error:  # of the caller's hook, which refuses by raising whatever it likes
            message = decode_sds_message(payload, self._machine.sds_config.wire_family)
            is_other = not isinstance(message, Malformed) and message.channel_id != self._machine.channel_id
            if is_other and encryption.encrypts_inside:
                return None  # ids of channels are in the clear there, and several may share the topic
            if isinstance(message, Malformed) or is_other:
                # The type of the error is enough; its text may hold what must not be logged.
                detail = f"{len(payload)} bytes: {type(error).__name__}"
                return self._refuse(now, Reason.UNDECRYPTABLE, detail)
            return self._decrypt_content(message.content, encryption, envelope, now)

    def _decrypt_content(
        self, content: bytes | None, encryption: ChannelEncryption, envelope: ReceivedEnvelope, now: int
    ) -> EnvelopeReceived | ChannelProblem:
        """Read an SDS message in the clear. Its content must be a ciphertext. One without content is accepted only in
        the layer that sends such messages in the clear: strangers can write them, acknowledgements included."""
        payload, digest = envelope.message.payload, envelope.message_hash
        if not content:
            if encryption.encrypts_inside:
                return EnvelopeReceived(now, payload, digest)
            return self._refuse(now, Reason.PLAINTEXT_REFUSED, "a sync message in the clear, and a key is configured")
        try:
            opened = None if encryption.inside is None else encryption.inside.decrypt(content)
        except NoCiphertextError:
            opened = None
        except Exception as error:
            return self._refuse(now, Reason.UNDECRYPTABLE, f"content inside SDS: {type(error).__name__}")
        if not opened:
            return self._refuse(now, Reason.PLAINTEXT_REFUSED, "an SDS message in the clear, and a key is configured")
        return EnvelopeReceived(now, payload, digest, opened)

    def _refuse(self, now: int, reason: Reason, detail: str) -> ChannelProblem:
        return ChannelProblem(channel_id=self._machine.channel_id, at=now, kind=reason.value, detail=detail)


MAX_ENVELOPES = 20_000
MAX_BYTES = 256 * 1024 * 1024
"""How many envelopes may wait, and how many bytes of them. Further ones are dropped, and stores still have them."""


class Arrivals:
    """A queue; ``lost`` counts the envelopes it did not accept. Thread-safe, never blocks."""

    def __init__(self, max_envelopes: int = MAX_ENVELOPES, max_bytes: int = MAX_BYTES) -> None:
        self._max_envelopes = max_envelopes
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._waiting: deque[ReceivedEnvelope] = deque()
        self._bytes = 0
        self.lost = 0

    def offer(self, envelope: ReceivedEnvelope) -> bool:
        """Add one envelope, unless the queue is full."""
        size = envelope.message.size
        with self._lock:
            if len(self._waiting) >= self._max_envelopes or self._bytes + size > self._max_bytes:
                self.lost += 1
                return False
            self._waiting.append(envelope)
            self._bytes += size
            return True

    def put(self, envelopes: Iterable[ReceivedEnvelope]) -> None:
        """Add all envelopes, for a caller that waited until the queue was no longer :attr:`is_crowded`."""
        with self._lock:
            for envelope in envelopes:
                self._waiting.append(envelope)
                self._bytes += envelope.message.size

    def take(self) -> ReceivedEnvelope:
        """Remove and return the oldest. Raises ``IndexError`` when there is none."""
        with self._lock:
            envelope = self._waiting.popleft()
            self._bytes -= envelope.message.size
            return envelope

    @property
    def is_crowded(self) -> bool:
        """More than half full."""
        with self._lock:
            return len(self._waiting) * 2 >= self._max_envelopes or self._bytes * 2 >= self._max_bytes

    def __len__(self) -> int:
        return len(self._waiting)
