"""To which send of a payload a segment belongs (protocol.md §3, *Sets are separate*)."""

from __future__ import annotations

from reliable_channel.segmentation.pending import PARITY, CompletedSet, OpenSet
from reliable_channel.wire.segment import Segment


def place_segment(
    sends: list[OpenSet | CompletedSet], segment: Segment, slot: int, codec: str, lamport: int | None
) -> OpenSet | CompletedSet | None:
    """The send a segment belongs to, or ``None``: it opens a new one.

    Among open sends that lack it, the one whose first Lamport timestamp it agrees with, else the oldest. A completed
    send takes it when it lacks that slot, unless its segments agree on a first timestamp that this one contradicts:
    what was rebuilt there is this one's namesake of an earlier send. That exception needs every send of the payload to
    be of one piece. Where segments of several have been mixed, what is left over could make up a send that never was.
    """
    if len(sends) == 1 and isinstance(only := sends[0], OpenSet):
        return only if slot not in only.slots and only.fits(segment, codec) else None
    pure = lamport is not None and not any(_mixed(send) for send in sends)
    fallback: OpenSet | None = None
    late: CompletedSet | None = None
    for send in sends:
        if slot in send.slots:
            continue
        place = None
        if lamport is not None:
            place = slot if slot < PARITY else slot - PARITY + send.data_count if send.data_count is not None else None
        if isinstance(send, CompletedSet):
            if segment.data_count not in (None, send.data_count):
                continue
            if send.parity_count is not None and segment.parity_count not in (None, send.parity_count):
                continue
            if lamport is not None and place is not None and lamport - place == send.origin:
                return send
            if not pure:
                late = late or send
            continue
        if not send.fits(segment, codec):
            continue
        if place is None:
            fallback = fallback or send
        elif lamport is not None and send.origin()[0] == lamport - place:
            return send
        else:
            fallback = fallback or send
    return fallback or late


def _mixed(send: OpenSet | CompletedSet) -> bool:
    """Whether the segments of a send do not agree on its first Lamport timestamp, or cannot tell."""
    return send.origin is None if isinstance(send, CompletedSet) else len(send.origins()) > 1
