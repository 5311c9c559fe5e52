"""Provides the parity codes by name: ``leopard`` (the one on the wire), ``klauspost`` (status-go's), ``reedsolo``
(independent)."""

from __future__ import annotations

from functools import cache

from reliable_channel.core.errors import LocalError
from reliable_channel.core.segmentation.codecs.base import Codec

__all__ = ["Codec", "get_codec"]


@cache
def get_codec(name: str) -> Codec:
    """Return the codec of that name: ``leopard``, ``klauspost`` or ``reedsolo`` (Segmentation 0.1, *Reed–Solomon*).
    Raises :class:`LocalError` for any other name. Codecs have no state except cached plans, and threads may share
    them."""
    # Imported when one is wanted: each brings its tables, and only one of them is on the wire.
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
