"""Defines the interface of a parity codec and the argument checks that all codecs share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from reliable_channel.core.errors import LocalError

MAX_SHARDS = 256
"""Maximum number of data and parity shards together (Segmentation 0.1, ``maxTotalSegments``)."""


class Codec(Protocol):
    """A systematic erasure code: any k of the k + m shards rebuild the data. Raises :class:`LocalError` on misuse."""

    name: str
    alignment: int
    """The length of a shard (bytes) must be a multiple of this."""

    def encode(self, data_shards: Sequence[bytes], parity_count: int) -> list[bytes]:
        """Encode ``parity_count`` parity shards, of the common length (bytes) of the data shards."""

    def decode(self, shards: Sequence[bytes | None], data_count: int) -> list[bytes]:
        """Return the ``data_count`` data shards, from ``shards``: data then parity, ``None`` where missing."""

    def supports(self, data_count: int, parity_count: int) -> bool:
        """Whether the code exists for these counts."""

    def decoding_work(self, data_count: int, parity_count: int, lost: int, length: int) -> int:
        """The cost of recovering ``lost`` data shards of ``length`` bytes, in bytes hashed with Keccak-256 (about 3 ns
        each)."""


def products_work(products: int, length: int, *, short: bool = False) -> int:
    """The measured work of ``products`` multiplications of a row of ``length`` bytes; ``short``: symbol by symbol."""
    if short:
        return products * length
    return products * (length + 4_096) // 9


def check_encode(codec: Codec, data_shards: Sequence[bytes], parity_count: int) -> int:
    """Check the arguments and return the common shard length (bytes). Raises :class:`LocalError`."""
    _check_counts(codec, len(data_shards), parity_count)
    return _find_common_length(codec, data_shards)


def check_decode(codec: Codec, shards: Sequence[bytes | None], data_count: int) -> int:
    """Check that there are enough shards, and return their common length (bytes). Raises :class:`LocalError`."""
    _check_counts(codec, data_count, len(shards) - data_count)
    held = [shard for shard in shards if shard is not None]
    if len(held) < data_count:
        raise LocalError(f"{len(held)} shards are held, {data_count} are needed.", "Wait for more segments.")
    return _find_common_length(codec, held)


def _check_counts(codec: Codec, data_count: int, parity_count: int) -> None:
    if data_count < 1 or parity_count < 0 or data_count + parity_count > MAX_SHARDS:
        raise LocalError(
            f"{data_count} data and {parity_count} parity shards.", f"Use 1 data shard or more, {MAX_SHARDS} in all."
        )
    if parity_count and not codec.supports(data_count, parity_count):
        raise LocalError(
            f"The {codec.name} code does not exist for {data_count} data and {parity_count} parity shards."
        )


def _find_common_length(codec: Codec, shards: Sequence[bytes]) -> int:
    length = len(shards[0])
    if any(len(shard) != length for shard in shards):
        raise LocalError("The shards differ in length.", "Pad the last one with zeros.")
    if length == 0 or length % codec.alignment:
        raise LocalError(f"A shard of {length} bytes.", f"The {codec.name} code needs a multiple of {codec.alignment}.")
    return length
