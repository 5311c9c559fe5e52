"""The way in: decrypt → SDS → reassemble → deliver as the exact reverse of the way out.

Decryption is here; SDS, reassembly and the decision to deliver are the state machine's. What arrives is hostile: every
refusal is an event, nothing raises.
"""

from __future__ import annotations

from reliable_channel.channel.encryption import Encryption
from reliable_channel.channel.events import ChannelProblem
from reliable_channel.channel.inputs import Heard
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.transport.base import ReceivedEnvelope
from reliable_channel.wire.malformed import Malformed, Reason
from reliable_channel.wire.sds import WireFamily, decode_sds_message

STAGES = ("decrypt", "sds", "reassemble", "deliver")


class IncomingPipeline:
    """One channel's way in."""

    def __init__(self, machine: ChannelMachine, pubsub_topic: str, encryption: Encryption | None) -> None:
        self._machine = machine
        self._pubsub_topic = pubsub_topic
        self._encryption = encryption

    def decrypt(self, envelope: ReceivedEnvelope, now: int) -> Heard | ChannelProblem | None:
        """The SDS message of an envelope; ``None`` for other topics' envelopes; a problem for what cannot be read."""
        if envelope.message.content_topic != self._machine.content_topic or envelope.pubsub_topic != self._pubsub_topic:
            return None
        payload = envelope.message.payload
        if self._encryption is None:
            return Heard(now, payload, envelope.message_hash)
        try:
            return Heard(now, self._encryption.decrypt(payload), envelope.message_hash)
        except Exception as error:
            # The type of the error says enough; its text may hold what must not be logged.
            kind, detail = self._refusal(payload, error)
            return ChannelProblem(channel_id=self._machine.channel_id, at=now, kind=kind, detail=detail)

    def _refusal(self, payload: bytes, error: Exception) -> tuple[str, str]:
        """Plaintext where a key is configured is refused, and told apart from what was encrypted otherwise."""
        family: WireFamily = self._machine.sds_config.wire_family
        plain = decode_sds_message(payload, family)
        if not isinstance(plain, Malformed) and plain.channel_id == self._machine.channel_id:
            return Reason.PLAINTEXT_REFUSED.value, "an SDS message in the clear, and a key is configured"
        return Reason.UNDECRYPTABLE.value, f"{len(payload)} bytes: {type(error).__name__}"
