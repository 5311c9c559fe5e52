"""Defines the encryption hook (RELIABLE-CHANNEL-API, *Encryption*): bytes to bytes, per segment, applied after SDS when
sending and before SDS when receiving.

No scheme is imposed, and encryption is off by default. A hook is any object with ``encrypt`` and ``decrypt``. It *may*
declare ``overhead_bytes``, the maximum by which ``encrypt`` lengthens its input (else :data:`ASSUMED_OVERHEAD_BYTES`
are reserved in every envelope). It *may* provide ``for_topics(pubsub_topic, content_topic)``, a hook that authenticates
both topics, so that a ciphertext moved to another topic is refused.

``decrypt`` refuses by raising: any exception means *not decryptable*, which becomes an event, never a crash. Its text
is not reported: a careless hook might have put a key into it.
"""

from __future__ import annotations

from typing import Protocol, cast, runtime_checkable

from reliable_channel.channel.errors import IncompleteEncryptionError
from reliable_channel.core.errors import ConfigurationError

ASSUMED_OVERHEAD_BYTES = 256
"""Reserved for a hook that declares nothing."""


@runtime_checkable
class Encryption(Protocol):
    """The caller's hook: both operations are required."""

    def encrypt(self, content: bytes) -> bytes:
        """Encrypt one SDS message. Must return different bytes at every call (a fresh nonce)."""
        ...

    def decrypt(self, payload: bytes) -> bytes:
        """Return the SDS message, or raise any exception."""
        ...


@runtime_checkable
class TopicBound(Protocol):
    """A hook that can authenticate the topics of its ciphertext."""

    def for_topics(self, pubsub_topic: str, content_topic: str) -> Encryption:
        """Return a hook that binds its ciphertexts to both topics, and refuses ciphertexts bound to others."""
        ...


def bind_encryption(encryption: object | None, pubsub_topic: str, content_topic: str) -> Encryption | None:
    """The hook of one channel, bound to its topics where it can be. Raises :class:`IncompleteEncryptionError`."""
    if encryption is None:
        return None
    hook = encryption.for_topics(pubsub_topic, content_topic) if isinstance(encryption, TopicBound) else encryption
    for operation in ("encrypt", "decrypt"):
        if not callable(getattr(hook, operation, None)):
            raise IncompleteEncryptionError(
                f"The encryption has no {operation}.", "Give an object with both encrypt(bytes) and decrypt(bytes)."
            )
    return cast(Encryption, hook)


def overhead_bytes(encryption: Encryption | None) -> int:
    """The maximum number of bytes that the hook adds to a message, as it declares."""
    if encryption is None:
        return 0
    declared = getattr(encryption, "overhead_bytes", ASSUMED_OVERHEAD_BYTES)
    if not isinstance(declared, int) or declared < 0:
        raise ConfigurationError("encryption.overhead_bytes is no number of bytes.", "Declare an integer, 0 or more.")
    return declared
