"""Encrypts simulated channels with the real cipher, using keys and nonces that follow from the plan.

For made-up conversations only, which must be the same byte for byte at every run: keys are no secrets here, and nonces
are derived from what they encrypt.
"""

from __future__ import annotations

import hashlib

from Crypto.Cipher import AES

from reliable_channel.channel.aes_gcm import LAYOUT, NONCE_BYTES, TAG_BYTES, AesGcm
from reliable_channel.simulation.scenario import ChannelPlan


class RepeatableAesGcm(AesGcm):
    """AES-GCM that encrypts the same bytes to the same bytes."""

    def encrypt(self, content: bytes) -> bytes:
        """``content`` encrypted under the first key."""
        nonce = hashlib.sha256(content).digest()[:NONCE_BYTES]
        header = bytes([LAYOUT]) + self._current
        cipher = AES.new(self._keys[self._current], AES.MODE_GCM, nonce=nonce, mac_len=TAG_BYTES)
        cipher.update(self._associated(header))
        ciphertext, tag = cipher.encrypt_and_digest(content)
        return header + nonce + ciphertext + tag


def channel_key(plan: ChannelPlan) -> bytes:
    """The key (32 bytes) of a channel, which its observer is given too."""
    return hashlib.sha256(f"key of {plan.channel_id}".encode()).digest()


def unknown_key(plan: ChannelPlan) -> bytes:
    """A key (32 bytes) that all participants have and the observer has not."""
    return hashlib.sha256(f"new key of {plan.channel_id}".encode()).digest()


def cipher(plan: ChannelPlan, *keys: bytes) -> RepeatableAesGcm:
    """A cipher for the channel's topics: the first key encrypts, all decrypt."""
    return RepeatableAesGcm(keys, pubsub_topic=plan.pubsub_topic, content_topic=plan.content_topic)
