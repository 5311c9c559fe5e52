"""Encrypts and decrypts messages with AES-256-GCM, as pure functions, in the ciphertext layout of channels.

Layout: ``layer ‖ key id (4 bytes) ‖ nonce (12 bytes) ‖ ciphertext ‖ tag (16 bytes)``, 33 bytes of overhead. The first
byte names what was encrypted: 0x01 an SDS message, 0x02 the content of one. The additional authenticated data are this
byte, key id, pubsub topic and content topic, each length-prefixed, so that a ciphertext is valid on its own topics and
in its own layer only.

The caller chooses the nonce, which must never be used twice with one key: :mod:`reliable_channel.channel.aes_gcm` draws
random ones and counts the messages. Keys are 32 bytes; a channel has several during a rotation.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Mapping
from enum import StrEnum

from Crypto.Cipher import AES

from reliable_channel.core.errors import ConfigurationError

KEY_BYTES = 32
KEY_ID_BYTES = 4
NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD_BYTES = 1 + KEY_ID_BYTES + NONCE_BYTES + TAG_BYTES

Topics = tuple[str, str]
"""Pubsub topic and content topic."""


class EncryptionLayer(StrEnum):
    """What is encrypted: whole SDS messages (RELIABLE-CHANNEL-API), or their contents, while the rest of them is in the
    clear (logos-delivery since its pull request 4231)."""

    AROUND_SDS = "around_sds"
    INSIDE_SDS = "inside_sds"


_FIRST_BYTES = {EncryptionLayer.AROUND_SDS: b"\x01", EncryptionLayer.INSIDE_SDS: b"\x02"}
"""Both layers use the same keys. A stranger must not be able to send a ciphertext of one as that of the other: whoever
can choose a payload would choose an SDS message."""


class DecryptionRefusedError(ValueError):
    """The ciphertext was made with other keys or for other topics, or is damaged. The text contains neither keys nor
    bytes."""


class NoCiphertextError(DecryptionRefusedError):
    """The bytes do not have the layout of a ciphertext of this layer; they may be plaintext."""


def encrypt(
    key: bytes, nonce: bytes, topics: Topics, content: bytes, layer: EncryptionLayer = EncryptionLayer.AROUND_SDS
) -> bytes:
    """Encrypt ``content`` for ``topics`` and ``layer``; the result is :data:`OVERHEAD_BYTES` longer. ``nonce``: 12
    bytes, new for this key."""
    header = _FIRST_BYTES[layer] + key_id(key)
    cipher = AES.new(key, AES.MODE_GCM, nonce=nonce, mac_len=TAG_BYTES)
    cipher.update(_make_associated_data(header, topics))
    ciphertext, tag = cipher.encrypt_and_digest(content)
    return header + nonce + ciphertext + tag


def decrypt(
    keys: Mapping[bytes, bytes],
    topics: Topics,
    payload: bytes,
    layer: EncryptionLayer = EncryptionLayer.AROUND_SDS,
) -> bytes:
    """Decrypt the result of :func:`encrypt`. ``keys`` maps key ids to keys. Raises :class:`DecryptionRefusedError` for
    bytes that these keys did not encrypt for these topics and this layer."""
    if not may_be_ciphertext(payload, layer):
        raise NoCiphertextError("not a ciphertext of this layout")
    header = payload[: 1 + KEY_ID_BYTES]
    key = keys.get(header[1:])
    if key is None:
        raise DecryptionRefusedError("encrypted with a key that is not configured")
    nonce = payload[len(header) : len(header) + NONCE_BYTES]
    cipher = AES.new(key, AES.MODE_GCM, nonce=nonce, mac_len=TAG_BYTES)
    cipher.update(_make_associated_data(header, topics))
    try:
        return cipher.decrypt_and_verify(payload[len(header) + NONCE_BYTES : -TAG_BYTES], payload[-TAG_BYTES:])
    except ValueError:
        raise DecryptionRefusedError("the tag does not fit: damaged, or bound to other topics") from None


def may_be_ciphertext(payload: bytes, layer: EncryptionLayer) -> bool:
    """Whether the bytes have the layout of a ciphertext of this layer; for those who have no key."""
    return len(payload) >= OVERHEAD_BYTES and payload.startswith(_FIRST_BYTES[layer])


def key_id(key: bytes) -> bytes:
    """Return the id of a key on the wire: 4 bytes of a one-way digest of the key. If two keys of one channel share an
    id (one pair in 2^32), the configuration keeps only one of them: generate another key."""
    return hashlib.sha256(b"reliable-channel aes-gcm key id\0" + key).digest()[:KEY_ID_BYTES]


def key_in(content: bytes, source: str) -> bytes:
    """Read the key from the content of the file or variable ``source``: 64 hex digits, or the 32 bytes themselves.
    Raises ``ConfigurationError`` naming the source, never its content."""
    text = all(byte in _TEXT for byte in content)
    try:
        key = bytes.fromhex(content.decode("ascii").strip()) if text else content
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigurationError(
            f"The key in {source} is neither 64 hex digits nor 32 bytes.", "Make one: openssl rand -hex 32"
        )
    return key


_TEXT = frozenset(string.printable.encode())
"""The bytes of a text file. A file with only such bytes contains hex digits, never the raw key: 32 hex digits are 16
bytes, too few, and no random key is text (one in 10^14)."""


def _make_associated_data(header: bytes, topics: Topics) -> bytes:
    fields = [topic.encode("utf-8") for topic in topics]
    return header + b"".join(len(field).to_bytes(4, "big") + field for field in fields)
