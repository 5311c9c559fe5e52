"""Holds the parts of one channel's state, and the few operations that sending and receiving share."""

from __future__ import annotations

from collections.abc import Sequence

from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.sds.events import FilterRolledOver, SdsEvent
from reliable_channel.core.sds.filter import OwnFilter
from reliable_channel.core.sds.incoming import IncomingBuffer
from reliable_channel.core.sds.log import LogEntry, MessageLog
from reliable_channel.core.sds.outgoing import OutgoingBuffer
from reliable_channel.core.sds.repair import Repair
from reliable_channel.core.sds.repeats import Repeats
from reliable_channel.core.sds.review import AckReview
from reliable_channel.core.sds.room import SYNC_ROOM_BYTES, fitting, room_for
from reliable_channel.core.sds.sync import SyncTimer
from reliable_channel.core.sds.unproven import Unproven
from reliable_channel.core.wire.sds import HistoryEntry


class ChannelState:
    """Everything a channel remembers. An observer has no filter, no sync timer and no repair of its own."""

    def __init__(self, channel_id: str, participant_id: str | None, config: SdsParameters) -> None:
        self.channel_id = channel_id
        self.participant_id = participant_id
        self.config = config
        self.clock: int | None = None
        self.observed_since = 0
        """Lamport timestamp of the first observation: what is named by a message up to it is older still."""
        self.sequence = 0
        self.ephemeral_counter = 0
        self.last_own = ""
        """The id of the last own content message."""
        self.log = MessageLog(config.max_log_entries, config.max_log_bytes)
        self.incoming = IncomingBuffer(config, observer=participant_id is None)
        self.repeats = Repeats(config.max_repeats)
        self.unproven = Unproven(config.max_remembered, config.max_remembered_bytes)
        self.outgoing = OutgoingBuffer(config)
        self.review = AckReview(config, participant_id, self.log, self.incoming, self.outgoing)
        self.filter: OwnFilter | None = None
        self.sync: SyncTimer | None = None
        self.repair: Repair | None = None
        if participant_id is not None:
            self.filter = OwnFilter(config.filter_format)
            self.sync = SyncTimer(config, channel_id, participant_id)
            self.repair = Repair(config, participant_id) if config.repair else None

    def open(self, now: int, lamport: int | None = None) -> int:
        """Return the clock, started at the first call. A participant has observed the channel since then, an observer
        since the Lamport timestamp of the first message it saw, but never since a time after ``now``: a first message
        dated ahead would else hide what is missing."""
        if self.clock is None:
            self.clock = self.observed_since = self.clock_time(now)
            if self.sync is not None:
                self.sync.restart(now)
            elif lamport is not None:
                self.observed_since = min(self.clock_time(now), lamport)
        return self.clock

    def clock_time(self, now: int) -> int:
        """``now`` (ms) in the unit of the channel's Lamport clock."""
        return now // self.config.clock_unit_ms

    def lamport_ceiling(self, now: int) -> int:
        """The highest Lamport timestamp that is taken at ``now``.

        Honest clocks ride on the highest timestamp they have taken, so a successor of the channel's clock is taken also
        beyond the tolerance. The step is small: to drive the clock further ahead than time itself goes takes many
        messages a second, for as long as it is to last.
        """
        config = self.config
        tolerated = self.clock_time(now + config.lamport_tolerance_ms)
        furthest = self.clock_time(now + config.lamport_max_ahead_ms)
        successor = min((self.clock or 0) + config.lamport_max_step, furthest)
        return max(tolerated, successor)

    def insert_into_filter(self, message_id: str, now: int, events: list[SdsEvent]) -> None:
        """An id is seen, or sent. At capacity the filter is first rebuilt from the recent log, to half its capacity,
        and from what waits in the incoming buffer: that is seen too."""
        if self.filter is None:
            return
        capacity = self.config.filter_format.capacity
        if self.filter.count >= capacity:
            recent = self.log.recent_ids(capacity // 2)
            held = list(self.incoming.waiting.values())[-(capacity // 4) :]
            recent += [waiting.sds_id for waiting in held if not waiting.unproven]
            self.filter.roll_over(recent)
            events.append(FilterRolledOver(now, len(recent)))
        self.filter.insert(message_id)

    def history(self, also: Sequence[str] = ()) -> tuple[HistoryEntry, ...]:
        """The causal history of a message sent now, with retrieval hints where known, in log order.

        It holds the highest entries of the log, the own message before, and those of ``also``, which are in the log;
        what does not fit into the room that envelopes reserve is left out. By the own message before, whoever lacks
        one of a sender's messages learns of it from any later one, by one step after the other."""
        size = self.config.causal_history_size
        usual = list(reversed(self.log.last(size)))
        mine = self.log.get(self.last_own)
        if usual and mine is not None and mine not in usual:
            usual.insert(1, mine)
        named = fitting(map(_naming, usual), room_for(size, self.participant_id or ""))
        lamports = {entry.message_id: entry.lamport for entry in usual}
        others = [entry for each in also if each not in lamports and (entry := self.log.get(each)) is not None]
        named += fitting(map(_naming, others), SYNC_ROOM_BYTES)
        lamports |= {entry.message_id: entry.lamport for entry in others}
        return tuple(sorted(named, key=lambda each: (lamports[each.message_id], each.message_id)))

    def repairs_pending(self) -> bool:
        """Whether there is something to ask other participants for."""
        return self.repair is not None and bool(self.repair.requests)


def _naming(entry: LogEntry) -> HistoryEntry:
    return HistoryEntry(entry.message_id, entry.hint, entry.sender_id)
