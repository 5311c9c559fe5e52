"""Computes the digests of the protocol: Keccak-256 for payloads and message ids, SHA-256 for envelopes and repair
timing."""

from __future__ import annotations

import hashlib
from enum import StrEnum

import tiny_keccak


def keccak256(data: bytes | bytearray | memoryview) -> bytes:
    """Compute the original Keccak-256 (32 bytes), *not* SHA3-256 (Segmentation 0.1)."""
    # A call of pycryptodome's hash takes 3 µs longer, and a record needs two (docs/decisions.md).
    return tiny_keccak.keccak256(bytes(data))


def sha256(data: bytes | bytearray | memoryview) -> bytes:
    """Compute SHA-256 (32 bytes)."""
    return hashlib.sha256(data).digest()


_SEPARATOR = b"\xff"
"""A byte that never occurs in UTF-8 text, so it ends a field unambiguously. No id of the older form hashes bytes that
begin with it."""


def sds_message_id(sender_id: str, first_lamport: int, content: bytes) -> str:
    """Compute the SDS id that this project's sender gives a message: hex Keccak-256 of ``ff ‖ sender_id ‖ ff ‖
    timestamp_ns ‖ ff ‖ content``. ``timestamp_ns`` is the Lamport timestamp (ms) of the *first* segment of the send ×
    10⁶, as decimal text. A receiver recomputes the id to verify a repair (docs/sds.md, *Message ids*)."""
    timestamp_ns = str(first_lamport * 1_000_000).encode("ascii")
    fields = (b"", sender_id.encode("utf-8"), timestamp_ns, content)
    return keccak256(_SEPARATOR.join(fields)).hex()


def compute_joined_id(sender_id: str, first_lamport: int, content: bytes) -> str:
    """Compute the SDS id that earlier versions gave a message: the same fields without separators. Only for
    verification, never sent: ``alice`` with ``1700…`` and ``alice1`` with ``700…`` have one id in this form."""
    timestamp_ns = str(first_lamport * 1_000_000).encode("ascii")
    return keccak256(b"".join((sender_id.encode("utf-8"), timestamp_ns, content))).hex()


def js_message_id(content: bytes) -> str:
    """Compute the SDS id that js-waku gives a message: hex SHA-256 of its content."""
    return hashlib.sha256(content).hexdigest()


def content_message_id(content: bytes) -> str:
    """Compute the SDS id that LIP-173 gives a message: hex Keccak-256 of its content."""
    return keccak256(content).hex()


class IdScheme(StrEnum):
    """How a sender computes its SDS ids. The values are those of ``ordered_sds_messages.id_scheme``."""

    KECCAK = "keccak"
    KECCAK_JOINED = "keccak_joined"
    """Of earlier versions of this project."""
    SHA256 = "sha256"
    """Of js-waku."""
    KECCAK_CONTENT = "keccak_content"
    """Of LIP-173."""

    def message_id(self, sender_id: str, first_lamport: int | None, content: bytes) -> str | None:
        """The id in this scheme; ``None`` if it needs the Lamport timestamp (ms) of the send's first segment, which is
        unknown."""
        if self is IdScheme.SHA256:
            return js_message_id(content)
        if self is IdScheme.KECCAK_CONTENT:
            return content_message_id(content)
        if first_lamport is None:
            return None
        make = sds_message_id if self is IdScheme.KECCAK else compute_joined_id
        return make(sender_id, first_lamport, content)
