"""Decrypts messages of encrypted channels on the executors (RELIABLE-CHANNEL-API, *Encryption*; docs/howto/keys.md).

Each content topic lists its keys, several for rotation, by the names of files or environment variables (``env:NAME``)
that the executors can read. The serialized job contains these names and never the keys.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from reliable_channel.config import ChannelTopic
from reliable_channel.core.aes_gcm import KEY_BYTES, DecryptionRefusedError, decrypt, key_id, key_in
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.sds import decode_in_families

ENVIRONMENT = "env:"


class PayloadDecryptor:
    """Decrypts payloads of envelopes. Created once per Python worker; caches the keys it has read by their names."""

    def __init__(self) -> None:
        self._keys: dict[tuple[str, ...], Mapping[bytes, bytes] | Malformed] = {}

    def open(self, payload: bytes, topic: ChannelTopic, pubsub_topic: str, content_topic: str) -> bytes | Malformed:
        """Decrypt to the bytes of the SDS message, or return the reason for refusal: ``plaintext_refused`` for an
        unencrypted SDS message (a topic with a key accepts none), else ``undecryptable``."""
        names = topic.decryption_key_files
        if names not in self._keys:
            self._keys[names] = _read_keys(names)
        keys = self._keys[names]
        if isinstance(keys, Malformed):
            return keys
        try:
            return decrypt(keys, (pubsub_topic, content_topic), payload)
        except DecryptionRefusedError as error:
            if not isinstance(decode_in_families(payload, topic.families), Malformed):
                return Malformed(Reason.PLAINTEXT_REFUSED, "a key is configured for this content topic")
            return Malformed(Reason.UNDECRYPTABLE, type(error).__name__)


def _read_keys(names: tuple[str, ...]) -> Mapping[bytes, bytes] | Malformed:
    """Read the keys from disk or environment; returns them by key id. If one cannot be read, records wait in
    ``quarantine``."""
    try:
        return {key_id(key): key for key in map(_read_key, names)}
    except ConfigurationError as error:
        return Malformed(Reason.UNDECRYPTABLE, error.cause[:200])


def _read_key(name: str) -> bytes:
    if name.startswith(ENVIRONMENT):
        return _from_environment(name.removeprefix(ENVIRONMENT))
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"The key file {name} cannot be read: {error.strerror}.") from None
    return key_in(content, name)


def _from_environment(name: str) -> bytes:
    text = os.environ.get(name)
    if text is None:
        raise ConfigurationError(f"The environment variable {name} with a decryption key is not set.")
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigurationError(f"The environment variable {name} does not hold {2 * KEY_BYTES} hex digits.")
    return key
