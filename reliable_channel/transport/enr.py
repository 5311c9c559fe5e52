"""Reads the shards that a node serves from its ENR (EIP-778; 51/WAKU2-RELAY-SHARDING)."""

from __future__ import annotations

from collections.abc import Iterator

from reliable_channel.transport.waku_json import decode_base64

MAX_ENR_CHARACTERS = 600
"""The maximum length of a record that is read: EIP-778 allows 300 bytes, which are 400 characters of base64."""

_BIT_VECTOR_BYTES = 128


def relay_topics(enr: object) -> frozenset[str] | None:
    """The pubsub topics of the shards in a record such as ``enr:-Jq4Q…``.

    Empty when the record names none; ``None`` when it is not a valid record. Signatures are not checked, because the
    record comes from the node itself."""
    if not isinstance(enr, str) or not enr.startswith("enr:") or len(enr) > MAX_ENR_CHARACTERS:
        return None
    data = decode_base64(enr.removeprefix("enr:"))
    if data is None:
        return None
    try:
        (fields,) = _read_items(data)
        content = [*_read_items(fields)]
    except ValueError:
        return None
    named = dict(zip(content[2::2], content[3::2], strict=False))  # after signature and sequence number
    return frozenset({*_shards_of_list(named.get(b"rs", b"")), *_shards_of_bits(named.get(b"rsv", b""))})


def _read_items(data: bytes) -> Iterator[bytes]:
    """The contents of RLP items one after another, of a list its encoded items. Raises ``ValueError``."""
    # https://ethereum.org/en/developers/docs/data-structures-and-encoding/rlp/: a byte below 0x80 is an item; others
    # begin a text (below 0xC0) or a list, whose size, if it is over 55, follows in so many bytes.
    at = 0
    while at < len(data):
        kind = data[at]
        at += 1
        if kind < 0x80:
            yield bytes([kind])
            continue
        size = kind - (0x80 if kind < 0xC0 else 0xC0)
        if size > 55:
            length_bytes = size - 55
            size = int.from_bytes(data[at : at + length_bytes], "big")
            at += length_bytes
        if at + size > len(data):
            raise ValueError("an item is longer than its record")
        yield data[at : at + size]
        at += size


def _shards_of_list(value: bytes) -> Iterator[str]:
    """``rs``: cluster (2 bytes), how many, the shards (2 bytes each)."""
    if len(value) >= 3 and len(value) == 3 + 2 * value[2]:
        cluster = int.from_bytes(value[:2], "big")
        for at in range(3, len(value), 2):
            yield f"/waku/2/rs/{cluster}/{int.from_bytes(value[at : at + 2], 'big')}"


def _shards_of_bits(value: bytes) -> Iterator[str]:
    """``rsv``: cluster (2 bytes), a bit for each of 1024 shards, the least significant first."""
    if len(value) == 2 + _BIT_VECTOR_BYTES:
        cluster = int.from_bytes(value[:2], "big")
        for shard in range(8 * _BIT_VECTOR_BYTES):
            if value[2 + shard // 8] >> shard % 8 & 1:
                yield f"/waku/2/rs/{cluster}/{shard}"
