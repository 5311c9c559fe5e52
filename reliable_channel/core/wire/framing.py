"""Writes length-delimited protobuf fields without the protobuf library, which copies a value three times on the way
into a message; a segment passes through four messages. Fields joined in the order of their numbers are the bytes that
the library would write."""

from __future__ import annotations

_LENGTH_DELIMITED = 2


def field(number: int, *parts: bytes) -> tuple[bytes, ...]:
    """The pieces, to be joined, of a bytes field with the value of all ``parts`` together, or of a message field."""
    return (_varint(number << 3 | _LENGTH_DELIMITED) + _varint(sum(map(len, parts))), *parts)


def field_unless_empty(number: int, value: bytes) -> tuple[bytes, ...]:
    """The same for a field without presence, which proto3 leaves out when it is empty."""
    return field(number, value) if value else ()


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
