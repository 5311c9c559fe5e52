"""Moves the payloads of overdue sets out of memory: such a set may wait for a day, and there may be many.

The records of a set stay, so that it is found, counted and bounded like any other. Its payloads come back with the next
segment of its payload, or when it is given up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from reliable_channel.core.segmentation.pending import OpenSet


class SegmentStore(Protocol):
    """Keeps payloads by the number of their segment. What it loses is lost: it must be as durable as the snapshots that
    refer to it."""

    def put(self, payloads: Mapping[int, bytes]) -> None:
        """Store payloads; a number that is there is replaced."""

    def get(self, numbers: Collection[int]) -> Mapping[int, bytes]:
        """The payloads of these numbers, as far as they are there."""

    def keep(self, numbers: Collection[int]) -> None:
        """Remove all other payloads. Called when no snapshot or journal refers to them any more."""


def park(held: OpenSet, store: SegmentStore) -> None:
    """Move the payloads of a set into the store, unless they are being worked on."""
    if held.parked or held.conflicts or held.mismatch or held.unfinished:
        return
    store.put({number: payload for _, _, payload, number in held.slots.values()})
    _replace(held, {})
    held.parked = True


def unpark(held: OpenSet, store: SegmentStore) -> None:
    """Take the payloads of a parked set back. One that the store has lost is empty: its hash will not match."""
    _replace(held, store.get([shard[3] for shard in held.slots.values()]))
    held.parked = False


def _replace(held: OpenSet, payloads: Mapping[int, bytes]) -> None:
    for slot, (sds_id, lamport, _, number) in held.slots.items():
        held.slots[slot] = (sds_id, lamport, payloads.get(number, b""), number)
