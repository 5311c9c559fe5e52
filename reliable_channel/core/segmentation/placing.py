"""Decides which send of a payload a segment belongs to (docs/segmentation.md, *Sets and sends*)."""

from __future__ import annotations

from dataclasses import dataclass

from reliable_channel.core.segmentation.identity import binds_send
from reliable_channel.core.segmentation.pending import CompletedSet, OpenSet, first_of
from reliable_channel.core.segmentation.work import Work
from reliable_channel.core.wire.segment import Segment


@dataclass(slots=True)
class Arrival:
    """A segment to place: its slot, the codec of its set, and its SDS message's id, sender and Lamport timestamp
    (ms)."""

    segment: Segment
    slot: int
    codec: str
    sds_id: str
    sender: str
    lamport: int | None

    def first(self, data_count: int | None) -> int | None:
        """The first Lamport timestamp of its send, if timestamps are consecutive from segment to segment."""
        return first_of(self.slot, self.lamport, data_count)

    def binds(self, first: int | None, work: Work) -> bool:
        """Whether its id proves the first Lamport timestamp ``first``."""
        return binds_send(self.sender, self.segment, self.sds_id, first, work)


def continues(send: OpenSet | CompletedSet, segment: Segment, slot: int, codec: str, lamport: int | None) -> bool:
    """Whether a segment continues the only send of a payload, as nearly all do: a faster check with the same result as
    :func:`place_segment`."""
    return (
        isinstance(send, OpenSet)
        and send.data_count is not None
        and slot not in send.slots
        and send.fits(segment, codec)
        and send.first(send.data_count) == first_of(slot, lamport, send.data_count)
    )


def copy_of(sends: list[OpenSet | CompletedSet], new: Arrival, work: Work) -> OpenSet | CompletedSet | None:
    """Return the send that already holds this segment: the same slot and SDS id."""
    for send in sends:
        if new.slot not in send.slots:
            continue
        if isinstance(send, CompletedSet):
            sds_id, lamport = send.slots[new.slot], send.lamport(new.slot)
        else:
            sds_id, lamport, payload, _ = send.slots[new.slot]
            if sds_id == new.sds_id and payload != new.segment.payload:  # a conflict, which the hash decides
                return send
        if sds_id == new.sds_id:
            if lamport is None or new.lamport is None or lamport == new.lamport:
                return send
            # js-waku's ids are hashes of the content, the same for every send of a payload: with another Lamport
            # timestamp it is another send, unless the id binds one.
            k = send.data_count or new.segment.data_count
            if new.binds(first_of(new.slot, lamport, k), work):
                return send
    return None


def place_segment(sends: list[OpenSet | CompletedSet], new: Arrival, work: Work) -> OpenSet | CompletedSet | None:
    """Return the send a segment belongs to, or ``None`` if it opens a new one.

    It is the send with the same first Lamport timestamp. If there is none and the SDS id binds the send, the segment
    opens a new one. Else it joins the oldest open send, or is late for a completed one.
    """
    same: OpenSet | None = None
    oldest: OpenSet | None = None
    completed: list[CompletedSet] = []
    counts = {new.segment.data_count}
    for send in sends:
        if new.slot in send.slots:
            continue
        if isinstance(send, CompletedSet):
            if not send.may_hold(new.segment):
                continue
            k = send.data_count or new.segment.data_count or 0
            if new.lamport is not None and new.first(k) == send.first(k):
                return send
            completed.append(send)
        else:
            if not send.fits(new.segment, new.codec):
                continue
            # For two v0.1 parity segments with unknown data count, the difference is the same for any count.
            assumed = new.segment.data_count or send.data_count or 0
            if same is None and new.first(assumed) == send.first(assumed):
                same = send
            oldest = oldest or send
        counts.add(send.data_count)
    if same is not None:
        return same
    if oldest is None and not completed:
        return None
    # In a fixed order: each check is work, and what is left may not suffice for all.
    if any(new.binds(new.first(count), work) for count in sorted(filter(None, counts))):
        return None
    # Other ids do not show whether their sender numbers consecutively.
    if oldest is not None:
        return oldest
    # A completed send whose segments agree on another first timestamp was an earlier one, and to ignore this segment
    # could lose a message. With mixed sends, segments that are left over would form a send that never existed: two
    # sends, three deliveries.
    pure = new.lamport is not None and not any(_is_mixed(send) for send in sends)
    return None if pure else completed[0]


def _is_mixed(send: OpenSet | CompletedSet) -> bool:
    """Whether the segments of a send do not agree on its first Lamport timestamp, or do not determine it."""
    return send.origin is None if isinstance(send, CompletedSet) else len(send.origins()) > 1
