"""Encrypts simulated channels with the real cipher, using keys and nonces that follow from the plan.

For simulated conversations only, which must be the same byte for byte at every run: keys are not secret, and nonces are
derived from the encrypted content.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from reliable_channel.core.aes_gcm import NONCE_BYTES, decrypt, encrypt, key_id
from reliable_channel.simulation.scenario import ChannelPlan


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
