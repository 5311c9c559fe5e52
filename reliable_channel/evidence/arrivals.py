"""Finds out what has arrived here meanwhile, so that stores are not asked for it and it is not written again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.lake.tables import CHANNEL_KEY, ENVELOPES, SDS_MESSAGES
from reliable_channel.pipeline.lookup import Lookup, is_among
from reliable_channel.transport.base import list_hashes
from reliable_channel.transport.store.model import StoreEntry

MESSAGE = (*CHANNEL_KEY, "sds_id")
"""The columns that name a message: an SDS id alone does not, because anybody may repeat it in another channel."""


def key_of(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """The columns ``MESSAGE`` of a row."""
    return tuple(row[name] for name in MESSAGE)


def find_arrived(settings: Settings, sds_ids: set[str]) -> set[tuple[str, str, str, str]]:
    """Return which of these messages have arrived meanwhile, from their senders or from a store."""
    if not sds_ids:
        return set()
    # A stranger may use the id for another content, from which it cannot be recomputed.
    may_be_it = pc.field("id_verified").is_null() | pc.field("id_verified")
    columns = (*MESSAGE, "id_verified")
    rows = Lookup.of(settings.paths, SDS_MESSAGES).rows(columns, sds_ids, is_among("sds_id", sds_ids) & may_be_it)
    # Each once before it becomes Python objects: a stranger can repeat an id in any number.
    return {key_of(row) for row in rows.group_by([*MESSAGE]).aggregate([]).to_pylist()}


def drop_known(settings: Settings, entries: Sequence[StoreEntry]) -> list[StoreEntry]:
    """The entries whose envelopes are not here under any of their hashes."""
    hashes = {entry.message_hash: list_hashes(entry) for entry in entries}
    here = find_envelopes(settings, {hash_ for each in hashes.values() for hash_ in each})
    return [entry for entry in entries if here.isdisjoint(hashes[entry.message_hash])]


def find_envelopes(settings: Settings, hashes: set[bytes]) -> set[bytes]:
    """Which of these envelopes have arrived."""
    if not hashes:
        return set()
    rows = Lookup.of(settings.paths, ENVELOPES).rows(("message_hash",), hashes, is_among("message_hash", hashes))
    return {*rows["message_hash"].unique().to_pylist()}
