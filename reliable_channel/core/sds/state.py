"""Holds the parts of one channel's state, and the few operations that sending and receiving share."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import chain

from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.sds.events import FilterRolledOver, SdsEvent
from reliable_channel.core.sds.filter import OwnFilter
from reliable_channel.core.sds.incoming import IncomingBuffer
from reliable_channel.core.sds.log import LogEntry, MessageLog
from reliable_channel.core.sds.outgoing import OutgoingBuffer
from reliable_channel.core.sds.repair import Repair
from reliable_channel.core.sds.repeats import Repeats
from reliable_channel.core.sds.review import AckReview
from reliable_channel.core.sds.room import SYNC_ROOM_BYTES, limit_to_room, room_for
from reliable_channel.core.sds.sync import SyncTimer
from reliable_channel.core.sds.unproven import Unproven
from reliable_channel.core.wire.sds import HistoryEntry, WireFamily

FOLLOWED_AFTER = 3
"""In the nim family: how many delivered messages must show a level of the clock that is far ahead before it is
followed."""

MAX_FAR = 16
"""Lamport timestamps far ahead that are remembered to find such a level."""

MAX_JUMP = 2**40
"""How far ahead of time (in units of the clock) a message of the nim family may be. No channel counts so many messages,
timestamps in ms are beyond it, and steps of ``lamport_max_step`` do not use up what is left of 63 bits."""


class ChannelState:
    """Everything a channel remembers. An observer has no filter, no sync timer and no repair state."""

    def __init__(self, channel_id: str, participant_id: str | None, config: SdsParameters) -> None:
        self.channel_id = channel_id
        self.participant_id = participant_id
        self.config = config
        self.clock: int | None = None
        self.observed_since = 0
        """Lamport timestamp of the first observation: ids named by messages up to it are from before observation."""
        self.far: deque[int] = deque(maxlen=MAX_FAR)
        """Lamport timestamps of the last messages that were too far ahead for the clock to follow (nim family)."""
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
            self.repair = Repair(config, participant_id) if config.repair else None
            self.sync = SyncTimer(config, channel_id, participant_id, self.repair)

    def open(self, now: int, lamport: int | None = None) -> int:
        """Return the clock, started at the first call. A participant has observed the channel since then; an observer
        since the Lamport timestamp of the first message it saw, but never later than ``now``."""
        if self.clock is None:
            self.clock = self.observed_since = self.clock_time(now)
            if self.sync is not None:
                self.sync.restart(now)
            elif lamport is not None:  # a first message dated ahead would otherwise hide what is missing
                self.observed_since = min(self.clock_time(now), lamport)
        return self.clock

    def observe(self, lamport: int, now: int) -> None:
        """In the nim family, correct the beginning of the observation by a message that names unknown ids."""
        if self.config.wire_family is not WireFamily.NIM:
            return
        # Its clock counts messages and says nothing about time (docs/sds.md, *Limits*), so in a channel that is ahead
        # of time the first message received is the beginning.
        time = self.clock_time(now)
        if not self.review.participants.any_received:
            if lamport > time + self.config.causal_history_size:  # a few messages may have been sent in this second
                self.observed_since = lamport
        elif lamport < self.observed_since:  # the first was a stranger's, dated further ahead
            self.observed_since = max(lamport, min(time, self.observed_since))

    def clock_time(self, now: int) -> int:
        """``now`` (ms) in the unit of the channel's Lamport clock."""
        return now // self.config.clock_unit_ms

    def accepts_time(self, lamport: int, now: int) -> bool:
        """Whether everybody accepts this Lamport timestamp at ``now``: it is near time, or of the nim family."""
        config = self.config
        is_nim = config.wire_family is WireFamily.NIM
        return is_nim or lamport <= self.clock_time(now + config.lamport_tolerance_ms)

    def accepts(self, lamport: int, now: int) -> bool:
        """Whether a message with this Lamport timestamp is accepted at ``now``."""
        config = self.config
        if lamport <= self.clock_time(now + config.lamport_tolerance_ms):
            return True
        # Honest clocks follow the highest timestamp they accepted, so their successors are beyond the tolerance too.
        # The step is small: to hold the clock ahead takes many messages a second, for as long as it is to last.
        successor = lamport <= (self.clock or 0) + config.lamport_max_step
        # nim-sds peers follow any timestamp: who refused their messages would lose them for good.
        if config.wire_family is WireFamily.NIM:
            return successor or lamport <= self.clock_time(now) + MAX_JUMP
        return successor and lamport <= self.clock_time(now + config.lamport_max_ahead_ms)

    def follow(self, lamport: int, now: int) -> None:
        """Set the clock to the higher timestamp of a delivered message."""
        config = self.config
        if config.wire_family is WireFamily.NIM:
            # One message may be dated anywhere: the clock follows it only when the channel keeps arriving there.
            usual = max((self.clock or 0) + config.lamport_max_step, self.clock_time(now + config.lamport_tolerance_ms))
            if lamport > usual:
                self.far.append(lamport)
                if sum(abs(lamport - each) <= config.lamport_max_step for each in self.far) < FOLLOWED_AFTER:
                    return
        self.clock = lamport

    def insert_into_filter(self, message_id: str, now: int, events: list[SdsEvent]) -> None:
        """Insert an id that was seen or sent. At capacity the filter is first rebuilt from the recent log and the
        messages in the incoming buffer."""
        if self.filter is None:
            return
        capacity = self.config.filter_format.capacity
        if self.filter.count >= capacity:
            # Half of it: full, it would be rebuilt again at the next id.
            recent = self.log.recent_ids(capacity // 2)
            held = list(self.incoming.waiting.values())[-(capacity // 4) :]
            recent += [waiting.sds_id for waiting in held if not waiting.unproven]
            self.filter.roll_over(recent)
            events.append(FilterRolledOver(now, len(recent)))
        self.filter.insert(message_id)

    def history(self, owed: Sequence[str] | None) -> tuple[HistoryEntry, ...]:
        """Build the causal history of a message wrapped now, with retrieval hints where known, in log order.

        It contains the highest entries of the log that are not above the clock and the sender's previous message, as
        far as they fit into the room reserved in envelopes. ``owed``: of a sync message, the ids in the log that it
        names beside them; ``None`` for content. A sync message overtakes content that waits to be dispatched, so it
        names only what has left."""
        size, layout = self.config.causal_history_size, self.config.history_layout
        counts = self.log.holds if owed is None else self.outgoing.has_left
        usual = self.log.last(size, self.clock or 0, counts)
        own = (self.last_own,) if owed is None else chain((self.last_own,), reversed(self.outgoing.segments))
        mine = self.log.get(next(filter(counts, own), ""))
        if usual and mine is not None and mine not in usual:
            # Each sender's messages form a chain: who lacks one learns of it from any later one. Second, because the
            # room may not suffice for all, and the newest comes first (docs/sds.md, *Decisions*).
            usual.insert(1, mine)
        named = limit_to_room(map(_make_entry, usual), room_for(size, self.participant_id or "", layout), layout)
        lamports = {entry.message_id: entry.lamport for entry in usual}
        fitting = {entry.message_id for entry in named}
        others = [entry for each in owed or () if each not in fitting and (entry := self.log.get(each)) is not None]
        named += limit_to_room(map(_make_entry, others), SYNC_ROOM_BYTES, layout)
        lamports |= {entry.message_id: entry.lamport for entry in others}
        return tuple(sorted(named, key=lambda each: (lamports[each.message_id], each.message_id)))


def _make_entry(entry: LogEntry) -> HistoryEntry:
    return HistoryEntry(entry.message_id, entry.hint, entry.sender_id)
