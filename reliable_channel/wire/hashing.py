"""The digests of the protocol: Keccak-256 for payloads and message ids, SHA-256 for envelopes and repair timing."""

from __future__ import annotations

import hashlib

from Crypto.Hash import keccak


def keccak256(data: bytes | bytearray | memoryview) -> bytes:
    """The original Keccak-256 (32 bytes), *not* SHA3-256 (protocol.md §3)."""
    return keccak.new(digest_bits=256, data=data).digest()


def sha256(data: bytes | bytearray | memoryview) -> bytes:
    """SHA-256, 32 bytes."""
    return hashlib.sha256(data).digest()


def sds_message_id(sender_id: str, first_lamport: int, content: bytes) -> str:
    """The SDS id this project's sender gives a message (protocol.md §4): hex Keccak-256 of
    ``sender_id ‖ timestamp_ns ‖ content``, where ``timestamp_ns`` is the Lamport timestamp (ms) of the *first* segment
    of the send × 10⁶, as decimal text. A receiver recomputes it to verify a repair."""
    digest = keccak.new(digest_bits=256)
    digest.update(sender_id.encode("utf-8"))
    digest.update(str(first_lamport * 1_000_000).encode("ascii"))
    digest.update(content)
    return digest.hexdigest()


def js_message_id(content: bytes) -> str:
    """The SDS id js-waku gives a message: hex SHA-256 of its content (protocol.md §4)."""
    return hashlib.sha256(content).hexdigest()
