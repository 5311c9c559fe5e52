"""Looks into SDS channels and filters, for what only tests need."""

from __future__ import annotations

from typing import Any

from reliable_channel.core.sds import SdsChannel
from reliable_channel.core.sds.horizons import Position
from reliable_channel.core.wire.bloom import FilterFormat


def log_positions(channel: SdsChannel) -> tuple[Position, ...]:
    """The positions of a channel's log, ``(lamport timestamp, id)``, ascending."""
    return channel._state.log.positions()


def has_id(filter_format: FilterFormat, words: Any, message_id: str) -> bool:
    """Whether all k bits of an id are set in ``words``, looked at one by one."""
    flip = filter_format._byte_flip
    return all(words[(bit >> 3) ^ flip] >> (bit & 7) & 1 for bit in filter_format.bit_positions(message_id))
