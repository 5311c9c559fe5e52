"""Defines the encryption hook (RELIABLE-CHANNEL-API, *Encryption*): bytes to bytes, per segment. It encrypts whole SDS
messages (``around_sds``, as that document has it) or their contents (``inside_sds``, as logos-delivery does).

No scheme is imposed, and encryption is off by default. A hook is any object with ``encrypt`` and ``decrypt``. It *may*
declare ``overhead_bytes``, the maximum by which ``encrypt`` lengthens its input (else :data:`ASSUMED_OVERHEAD_BYTES`
are reserved in every envelope). It *may* provide ``for_topics(pubsub_topic, content_topic)``, a hook that authenticates
both topics, so that a ciphertext moved to another topic is refused. It *may* provide ``inside_sds()``, the hook for
contents; without it the channel neither sends nor reads messages that are encrypted inside SDS.

``decrypt`` refuses by raising: any exception means *not decryptable*, which becomes an event, never a crash. Its text
is not reported: a careless hook might have put a key into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

from reliable_channel.channel.errors import IncompleteEncryptionError
from reliable_channel.core.aes_gcm import DecryptionRefusedError, EncryptionLayer, NoCiphertextError
from reliable_channel.core.errors import ConfigurationError, LocalError
from reliable_channel.core.wire.sds import SdsMessage

ASSUMED_OVERHEAD_BYTES = 256
"""Reserved for a hook that declares nothing."""


@runtime_checkable
class Encryption(Protocol):
    """The caller's hook: both operations are required."""

    def encrypt(self, content: bytes) -> bytes:
        """Encrypt one SDS message or content. Must return different bytes at every call (a fresh nonce)."""

    def decrypt(self, payload: bytes) -> bytes:
        """Return what was encrypted, or raise any exception."""


@runtime_checkable
class TopicBound(Protocol):
    """A hook that can authenticate the topics of its ciphertext."""

    def for_topics(self, pubsub_topic: str, content_topic: str) -> Encryption:
        """Return a hook that binds its ciphertexts to both topics, and refuses ciphertexts bound to others."""


@runtime_checkable
class LayerBound(Protocol):
    """A hook that can encrypt inside SDS."""

    def inside_sds(self) -> Encryption:
        """Return the hook for contents of SDS messages. Its ``decrypt`` must raise for all that its ``encrypt`` did not
        make, whole SDS messages of the other layer included: what it accepts counts as encrypted."""


@dataclass(frozen=True, slots=True)
class ChannelEncryption:
    """The encryption of one channel. ``inside``: the hook for contents, if there is one; ``layer``: that in which the
    channel sends."""

    around: Encryption
    inside: Encryption | None
    layer: EncryptionLayer

    @property
    def encrypts_inside(self) -> bool:
        """Whether the channel sends in the layer ``inside_sds``."""
        return self.layer is EncryptionLayer.INSIDE_SDS

    @property
    def contents_hook(self) -> Encryption | None:
        """The hook that encrypts each content before SDS wraps it; ``None`` if whole messages are encrypted."""
        return self.inside if self.encrypts_inside else None

    def protect(self, message: SdsMessage, data: bytes) -> bytes:
        """The payload of an envelope for ``message``, whose bytes are ``data``. Messages whose content is encrypted
        travel as they are, in both layers: repairs of others' messages are among them, and messages from before the
        setting changed. Never returns a content in the clear. Raises what the hook raises, and ``LocalError`` for a
        ciphertext of a key that was removed."""
        if message.content is None or message.content == b"":
            return data if self.encrypts_inside else self.around.encrypt(data)
        return data if self._is_encrypted(message.content) else self.around.encrypt(data)

    def _is_encrypted(self, content: bytes) -> bool:
        if self.inside is None:
            return False
        try:
            self.inside.decrypt(content)
        except Exception as error:
            is_ciphertext = isinstance(error, DecryptionRefusedError) and not isinstance(error, NoCiphertextError)
            if is_ciphertext and self.encrypts_inside:
                # Encrypted once more, around SDS, its recipient would take the ciphertext for the message.
                raise LocalError(
                    "It was encrypted with a key that is no longer configured.", "Configure that key, or send it again."
                ) from None
            return False
        return True

    def overhead_bytes(self) -> int:
        """The maximum number of bytes that the hook adds to a message, as it declares."""
        declared = getattr(self.around, "overhead_bytes", ASSUMED_OVERHEAD_BYTES)
        if not isinstance(declared, int) or declared < 0:
            raise ConfigurationError(
                "encryption.overhead_bytes is no number of bytes.", "Declare an integer, 0 or more."
            )
        return declared


def bind_encryption(
    encryption: object | None, layer: EncryptionLayer, pubsub_topic: str, content_topic: str
) -> ChannelEncryption | None:
    """The encryption of one channel, bound to its topics where it can be. Raises :class:`IncompleteEncryptionError`,
    also for ``inside_sds`` with a hook that cannot do that."""
    if encryption is None:
        return None
    hook = encryption.for_topics(pubsub_topic, content_topic) if isinstance(encryption, TopicBound) else encryption
    around = _require_both(hook)
    inside = _require_both(hook.inside_sds()) if isinstance(hook, LayerBound) else None
    if inside is None and layer is EncryptionLayer.INSIDE_SDS:
        raise IncompleteEncryptionError(
            "encryption_layer is inside_sds, and the encryption has no inside_sds().",
            "Give one that has it, or use around_sds.",
        )
    return ChannelEncryption(around, inside, layer)


def _require_both(hook: object) -> Encryption:
    for operation in ("encrypt", "decrypt"):
        if not callable(getattr(hook, operation, None)):
            raise IncompleteEncryptionError(
                f"The encryption has no {operation}.", "Give an object with both encrypt(bytes) and decrypt(bytes)."
            )
    return _BytesOnly(cast(Encryption, hook))


class _BytesOnly:
    """A caller's hook, whose results become ``bytes``: journal and network take no other buffer. What is none raises
    ``TypeError``, as a hook that fails."""

    def __init__(self, hook: Encryption) -> None:
        self._hook = hook
        self.overhead_bytes = getattr(hook, "overhead_bytes", ASSUMED_OVERHEAD_BYTES)

    def encrypt(self, content: bytes) -> bytes:
        return memoryview(self._hook.encrypt(content)).tobytes()

    def decrypt(self, payload: bytes) -> bytes:
        return memoryview(self._hook.decrypt(payload)).tobytes()
