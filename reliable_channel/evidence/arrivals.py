"""Finds out what has arrived here meanwhile, so that stores are not asked for it and it is not written again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.lake.read import dataset_of, open_table, public_dataset
from reliable_channel.lake.tables import CHANNEL_KEY, ENVELOPES, SDS_MESSAGES
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
    data = public_dataset(open_table(settings.paths, SDS_MESSAGES))
    rows = data.to_table(columns=[*MESSAGE], filter=pc.field("sds_id").isin(sorted(sds_ids)))
    return {*zip(*(rows[name].to_pylist() for name in MESSAGE), strict=True)}


def drop_known(settings: Settings, entries: Sequence[StoreEntry]) -> list[StoreEntry]:
    """The entries whose envelopes are not here under any of their hashes."""
    if not entries:
        return []
    hashes = {entry.message_hash: list_hashes(entry) for entry in entries}
    data = dataset_of(open_table(settings.paths, ENVELOPES))
    among = pc.field("message_hash").isin([*{hash_ for each in hashes.values() for hash_ in each}])
    here = set(data.to_table(columns=["message_hash"], filter=among)["message_hash"].to_pylist())
    return [entry for entry in entries if here.isdisjoint(hashes[entry.message_hash])]
