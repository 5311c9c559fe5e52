"""Provides an encryption hook: AES-256-GCM with one key per channel, several during a rotation.

:mod:`reliable_channel.core.aes_gcm` has the layout of a ciphertext; this module has keys, nonces and their count.

**Nonce rules** (NIST SP 800-38D §8). A nonce must never be used twice with one key: two messages with the same nonce
reveal the xor of their plaintexts and the authentication key. Nonces are 96 random bits of the operating system, fresh
at every call, so a retransmission is a new ciphertext, and participants that share a key need not coordinate. With
random nonces a key may encrypt at most 2^32 messages *by all participants together*: beyond that the probability of a
repetition exceeds 2^-32. All objects with a key share one count, also objects that no longer exist, and refuse beyond
2^32. Another process starts its own count (136 years at one message a second, and no nonce depends on the count). With
n participants, rotate n times as early.

**Rotation**: ``AesGcm([new, old])`` encrypts with the first key and decrypts with any. Give all participants
``[old, new]`` first, then ``[new, old]``, then ``[new]``.

A shared key proves *a member wrote this*, not which one: sender ids are only claims of the members.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from reliable_channel.core.aes_gcm import (
    KEY_BYTES,
    NONCE_BYTES,
    OVERHEAD_BYTES,
    EncryptionLayer,
    Topics,
    decrypt,
    encrypt,
    key_id,
    key_in,
)
from reliable_channel.core.errors import ConfigurationError, LocalError
from reliable_channel.transport.private_files import read_secret

MAX_MESSAGES_PER_KEY = 2**32  # NIST SP 800-38D §8.3, for nonces drawn at random

_encrypted: Counter[bytes] = Counter()
"""Messages encrypted by this process per key (a one-way digest of it). It outlives channels and their objects."""


class AesGcm:
    """AES-256-GCM for one channel. ``keys``: 32 bytes each, the first encrypts, all decrypt."""

    overhead_bytes = OVERHEAD_BYTES

    def __init__(
        self,
        keys: bytes | Sequence[bytes],
        *,
        pubsub_topic: str | None = None,
        content_topic: str | None = None,
        layer: EncryptionLayer = EncryptionLayer.AROUND_SDS,
    ) -> None:
        given = list(keys) if isinstance(keys, Sequence) and not isinstance(keys, bytes | bytearray | str) else [keys]
        if not given or not all(isinstance(key, bytes | bytearray) and len(key) == KEY_BYTES for key in given):
            raise ConfigurationError(
                f"AES-GCM needs keys of {KEY_BYTES} bytes.", "Make one with AesGcm.generate_key(), keep it in a file."
            )
        self._keys = {key_id(bytes(key)): bytes(key) for key in given}
        self._current = key_id(bytes(given[0]))
        self._topics = None if pubsub_topic is None or content_topic is None else (pubsub_topic, content_topic)
        self._layer = layer
        self._counted_as = hashlib.sha256(b"reliable-channel aes-gcm count\0" + bytes(given[0])).digest()

    def __repr__(self) -> str:
        return f"AesGcm({len(self._keys)} keys)"

    @staticmethod
    def generate_key() -> bytes:
        """32 random bytes."""
        return secrets.token_bytes(KEY_BYTES)

    @classmethod
    def from_files(cls, paths: Sequence[Path | str]) -> AesGcm:
        """Keys from files of 64 hex digits or 32 bytes, or from environment variables (``env:NAME``), the first
        encrypts. Raises ``ConfigurationError`` naming the file, never its content."""
        return cls([key_in(read_secret(path), str(path)) for path in paths])

    def for_topics(self, pubsub_topic: str, content_topic: str) -> AesGcm:
        """The same keys, bound to these topics."""
        return self._bind((pubsub_topic, content_topic), self._layer)

    def inside_sds(self) -> AesGcm:
        """The same keys and topics, for the contents of SDS messages."""
        return self._bind(self._require_topics(), EncryptionLayer.INSIDE_SDS)

    def _bind(self, topics: Topics, layer: EncryptionLayer) -> AesGcm:
        keys = [self._keys[self._current], *self._keys.values()]
        return AesGcm(keys, pubsub_topic=topics[0], content_topic=topics[1], layer=layer)

    def encrypt(self, content: bytes) -> bytes:
        """Encrypt ``content`` with the first key; the result is :data:`OVERHEAD_BYTES` longer."""
        if _encrypted[self._counted_as] >= MAX_MESSAGES_PER_KEY:
            raise LocalError("This AES-GCM key has encrypted 2^32 messages.", "Rotate: give a new key first.")
        _encrypted[self._counted_as] += 1
        nonce = secrets.token_bytes(NONCE_BYTES)
        return encrypt(self._keys[self._current], nonce, self._require_topics(), content, self._layer)

    def decrypt(self, payload: bytes) -> bytes:
        """Decrypt. Raises :class:`~reliable_channel.core.aes_gcm.DecryptionRefusedError` for bytes that these keys did
        not encrypt for these topics and this layer."""
        return decrypt(self._keys, self._require_topics(), payload, self._layer)

    def _require_topics(self) -> Topics:
        if self._topics is None:
            raise LocalError(
                "This AES-GCM is bound to no topics.", "Use for_topics(pubsub_topic, content_topic); channels do."
            )
        return self._topics
