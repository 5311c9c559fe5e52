"""Writes length-delimited protobuf fields without the protobuf library, which copies a value three times per message; a
segment passes through four messages. Fields concatenated in the order of their numbers equal the library's output."""

from __future__ import annotations

_LENGTH_DELIMITED = 2


def field(number: int, *parts: bytes) -> tuple[bytes, ...]:
    """Return the pieces, to be concatenated, of a bytes field or message field whose value is the concatenation of
    ``parts``."""
    return (_encode_varint(number << 3 | _LENGTH_DELIMITED) + _encode_varint(sum(map(len, parts))), *parts)


def field_unless_empty(number: int, value: bytes) -> tuple[bytes, ...]:
    """The same for a field without presence, which proto3 omits if it is empty."""
    return field(number, value) if value else ()


def _encode_varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    parts.append(number)
    return bytes(parts)
