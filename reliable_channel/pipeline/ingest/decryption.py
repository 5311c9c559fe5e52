"""Decrypts messages of encrypted channels on the executors (RELIABLE-CHANNEL-API, *Encryption*; docs/howto/keys.md).

Each content topic lists its keys, several for rotation, by the names of files or environment variables (``env:NAME``)
that the executors can read. The serialized job contains these names and never the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reliable_channel.config import ChannelTopic
from reliable_channel.core.aes_gcm import (
    DecryptionRefusedError,
    EncryptionLayer,
    NoCiphertextError,
    Topics,
    decrypt,
    key_id,
    key_in,
)
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.sds import SdsMessage, WireFamily, decode_in_families
from reliable_channel.transport.private_files import read_secret


@dataclass(frozen=True, slots=True)
class ReadMessage:
    """An SDS message. ``layer``: what was encrypted; ``None`` for a message in the clear. ``message``: as SDS has it,
    so with a ciphertext as content if the layer is inside SDS. ``content``: the plaintext of its content."""

    family: WireFamily
    message: SdsMessage
    layer: EncryptionLayer | None
    content: bytes | None


class PayloadDecryptor:
    """Decrypts payloads of envelopes. Created once per Python worker; caches the keys it has read by their names."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, ...], Mapping[bytes, bytes] | Malformed] = {}

    def read(
        self, payload: bytes, topic: ChannelTopic, pubsub_topic: str, content_topic: str
    ) -> ReadMessage | Malformed:
        """Read an SDS message that is encrypted as a whole, or whose content is. Otherwise returns the reason for
        refusal: ``plaintext_refused`` for what is in the clear (a topic with a key accepts no such content), else
        ``undecryptable``, or that of the SDS message."""
        keys = self._load_keys(topic)
        if isinstance(keys, Malformed):
            return keys
        topics = (pubsub_topic, content_topic)
        try:
            data = decrypt(keys, topics, payload)
        except DecryptionRefusedError as error:
            read = decode_in_families(payload, topic.families)
            if not isinstance(read, Malformed):
                return _read_inside(*read, keys, topics, topic.encryption_layer)
            other = read.reason is Reason.OTHER_FAMILY
            return read if other else Malformed(Reason.UNDECRYPTABLE, type(error).__name__)
        decoded = decode_in_families(data, topic.families)
        if isinstance(decoded, Malformed):
            return decoded
        return ReadMessage(*decoded, EncryptionLayer.AROUND_SDS, decoded[1].content or None)

    def open_content(
        self, ciphertext: bytes, topic: ChannelTopic, pubsub_topic: str, content_topic: str
    ) -> bytes | None:
        """The plaintext of the content of a message that :meth:`read` has read, from what was encrypted: the whole
        message or its content. ``None`` if no key decrypts it any more."""
        keys = self._load_keys(topic)
        if isinstance(keys, Malformed):
            return None
        try:
            return decrypt(keys, (pubsub_topic, content_topic), ciphertext, EncryptionLayer.INSIDE_SDS)
        except DecryptionRefusedError:
            read = self.read(ciphertext, topic, pubsub_topic, content_topic)
            return None if isinstance(read, Malformed) else read.content

    def _load_keys(self, topic: ChannelTopic) -> Mapping[bytes, bytes] | Malformed:
        names = topic.decryption_key_files
        if names not in self._keys:
            self._keys[names] = _read_keys(names)
        return self._keys[names]


def _read_inside(
    family: WireFamily, message: SdsMessage, keys: Mapping[bytes, bytes], topics: Topics, layer: EncryptionLayer
) -> ReadMessage | Malformed:
    """Read an SDS message in the clear on a topic with keys. One without content is accepted only where participants
    send such messages in the clear: strangers can write them, acknowledgements included."""
    if not message.content:
        if layer is EncryptionLayer.INSIDE_SDS:
            return ReadMessage(family, message, None, None)
        detail = f"without content; encryption_layer: {EncryptionLayer.INSIDE_SDS} accepts it"
        return Malformed(Reason.PLAINTEXT_REFUSED, detail)
    try:
        content = decrypt(keys, topics, message.content, EncryptionLayer.INSIDE_SDS)
    except NoCiphertextError:
        return Malformed(Reason.PLAINTEXT_REFUSED, "a key is configured for this content topic")
    except DecryptionRefusedError as error:
        return Malformed(Reason.UNDECRYPTABLE, f"content inside SDS: {type(error).__name__}")
    if not content:
        return Malformed(Reason.SDS_INVALID_KIND, "the decrypted content is empty")
    return ReadMessage(family, message, EncryptionLayer.INSIDE_SDS, content)


def _read_keys(names: tuple[str, ...]) -> Mapping[bytes, bytes] | Malformed:
    """Read the keys from disk or environment; returns them by key id. If one cannot be read, records wait in
    ``quarantine``."""
    try:
        return {key_id(key): key for key in (key_in(read_secret(name), name) for name in names)}
    except ConfigurationError as error:
        return Malformed(Reason.UNDECRYPTABLE, error.cause[:200])
