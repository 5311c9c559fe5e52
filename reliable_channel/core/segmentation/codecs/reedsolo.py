"""Wraps the ``reedsolo`` package, column by column. No peer uses this code on the wire; it is an independent
implementation of "any k of k + m rebuild". Pure Python, about 1 MB/s."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from reedsolo import RSCodec  # type: ignore[import-untyped]

from reliable_channel.core.segmentation.codecs.base import check_decode, check_encode

_SYMBOLS = 255
"""The length of a code word in GF(2^8): one less than the maximum number of shards of the other codes."""


class ReedsoloCodec:
    """The codec named ``reedsolo``; see :class:`reliable_channel.core.segmentation.codecs.Codec`."""

    name = "reedsolo"
    alignment = 1

    def supports(self, data_count: int, parity_count: int) -> bool:
        """At most 255 shards in all."""
        return data_count >= 1 and parity_count >= 1 and data_count + parity_count <= _SYMBOLS

    def decoding_work(self, data_count: int, parity_count: int, lost: int, length: int) -> int:
        """Not counted: it is always slow, and no remote sender can select it."""
        return 0

    def encode(self, data_shards: Sequence[bytes], parity_count: int) -> list[bytes]:
        """Encode the parity shards: column i of all shards is one code word."""
        check_encode(self, data_shards, parity_count)
        if parity_count == 0:
            return []
        codec = _codec(parity_count)
        columns = [codec.encode(bytes(column))[len(data_shards) :] for column in zip(*data_shards, strict=True)]
        return [bytes(shard) for shard in zip(*columns, strict=True)]

    def decode(self, shards: Sequence[bytes | None], data_count: int) -> list[bytes]:
        """Decode the data shards, with erasures given by position."""
        length = check_decode(self, shards, data_count)
        missing = [index for index, shard in enumerate(shards) if shard is None]
        if all(index >= data_count for index in missing):
            return [shard for shard in shards[:data_count] if shard is not None]
        codec = _codec(len(shards) - data_count)
        filled = [bytes(length) if shard is None else shard for shard in shards]
        columns = [codec.decode(bytes(column), erase_pos=missing)[0] for column in zip(*filled, strict=True)]
        return [bytes(shard) for shard in zip(*columns, strict=True)]


@lru_cache(maxsize=64)
def _codec(parity_count: int) -> RSCodec:
    return RSCodec(parity_count)
