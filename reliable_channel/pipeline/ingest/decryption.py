"""Decrypts messages of encrypted channels on the executors (RELIABLE-CHANNEL-API, *Encryption*; docs/howto/keys.md).

Keys are listed per content topic, several for rotation, by the names of files or of environment variables
(``env:NAME``) that the executors can read. The job carries these names and never the keys.
"""

from __future__ import annotations

import os

from reliable_channel.channel.aes_gcm import AesGcm
from reliable_channel.channel.encryption import Encryption
from reliable_channel.config import ChannelTopic
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.sds import decode_sds_message

ENVIRONMENT = "env:"


class Opener:
    """Decrypts payloads of envelopes. Made once per Python worker; remembers a hook per content topic."""

    def __init__(self) -> None:
        self._hooks: dict[tuple[str, str], list[Encryption] | Malformed] = {}

    def open(self, payload: bytes, topic: ChannelTopic, pubsub_topic: str, content_topic: str) -> bytes | Malformed:
        """The bytes of the SDS message, or why not: ``plaintext_refused`` for what reads as SDS unencrypted (with a key
        configured nothing else may speak), else ``undecryptable``."""
        hooks = self._hooks_of(topic, pubsub_topic, content_topic)
        if isinstance(hooks, Malformed):
            return hooks
        why = ""
        for hook in hooks:
            try:
                return hook.decrypt(payload)
            except Exception as error:  # the hook says no by raising anything (RELIABLE-CHANNEL-API)
                why = type(error).__name__
        if not isinstance(decode_sds_message(payload, topic.family), Malformed):
            return Malformed(Reason.PLAINTEXT_REFUSED, "a key is configured for this content topic")
        return Malformed(Reason.UNDECRYPTABLE, why)

    def _hooks_of(self, topic: ChannelTopic, pubsub_topic: str, content_topic: str) -> list[Encryption] | Malformed:
        key = (pubsub_topic, content_topic)
        if key not in self._hooks:
            if len(self._hooks) > 4_096:
                self._hooks.clear()
            self._hooks[key] = _read_hooks(topic, pubsub_topic, content_topic)
        return self._hooks[key]


def _read_hooks(topic: ChannelTopic, pubsub_topic: str, content_topic: str) -> list[Encryption] | Malformed:
    """The keys, read here and now. One that cannot be read costs no record: they wait in ``quarantine``."""
    variables = [n.removeprefix(ENVIRONMENT) for n in topic.decryption_key_files if n.startswith(ENVIRONMENT)]
    files = [n for n in topic.decryption_key_files if not n.startswith(ENVIRONMENT)]
    try:
        ciphers = [AesGcm(_from_environment(name)) for name in variables]
        if files:
            ciphers.append(AesGcm.from_files(files))
        return [cipher.for_topics(pubsub_topic, content_topic) for cipher in ciphers]
    except ConfigurationError as error:
        return Malformed(Reason.UNDECRYPTABLE, error.cause[:200])


def _from_environment(name: str) -> bytes:
    text = os.environ.get(name)
    if text is None:
        raise ConfigurationError(f"The environment variable {name} with a decryption key is not set.")
    try:
        return bytes.fromhex(text.strip())
    except ValueError:
        raise ConfigurationError(f"The environment variable {name} holds no hex digits.") from None
