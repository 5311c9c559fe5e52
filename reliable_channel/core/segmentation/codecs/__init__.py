"""Provides the parity codes by name: ``leopard`` (the one on the wire), ``klauspost`` (status-go's), ``reedsolo``
(independent)."""

from __future__ import annotations

from reliable_channel.core.errors import LocalError
from reliable_channel.core.segmentation.codecs.base import Codec

__all__ = ["Codec", "get_codec"]

_CODECS: dict[str, Codec] = {}


def get_codec(name: str) -> Codec:
    """Return the codec of that name: ``leopard``, ``klauspost`` or ``reedsolo`` (Segmentation 0.1, *Reed–Solomon*).
    Raises :class:`LocalError` for any other name. Codecs have no state except cached plans, and threads may share
    them."""
    codec = _CODECS.get(name)
    if codec is None:
        codec = _CODECS[name] = _create(name)
    return codec


def _create(name: str) -> Codec:
    if name == "leopard":
        from reliable_channel.core.segmentation.codecs.leopard import LeopardCodec

        return LeopardCodec()
    if name == "klauspost":
        from reliable_channel.core.segmentation.codecs.klauspost import KlauspostCodec

        return KlauspostCodec()
    if name == "reedsolo":
        from reliable_channel.core.segmentation.codecs.reedsolo import ReedsoloCodec

        return ReedsoloCodec()
    raise LocalError(f"There is no parity codec {name!r}.", "Choose leopard, klauspost or reedsolo.")
