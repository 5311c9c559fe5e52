"""Schedules sync messages (LIP-109, *Periodic Sync Message*).

Two timers share one sync message. The *interval* is a random back-off that all participants of a channel share. The
*owed* timer is short: a participant soon acknowledges content that nobody but its sender has named yet, because a
sender would otherwise retransmit everything to a recipient that has nothing to send. The first participant that names
the content answers for all listeners, so a burst of content costs about one sync message, not one per listener.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable

from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.sds.incoming import CATCH_UP_MS
from reliable_channel.core.sds.repair import Repair
from reliable_channel.core.shares import drop_surplus, take_turns
from reliable_channel.core.wire.sds import HistoryEntry

MAX_OWED = 200
"""Maximum number of ids that one sync message acknowledges by naming them: js-waku's causal history size, about 22
KB."""

MAX_OWED_KEPT = 10 * MAX_OWED
"""About how many ids may be owed, and no more than the log holds. For the others the filter of the next sync message
must suffice."""

_STEEPNESS = 4.0
"""Delays are drawn from an exponential distribution that is truncated at ``acknowledge_within_ms`` and rises with time:
most listeners wait long, while a few answer early, so the others need not. 4 suits up to about fifty listeners."""


class SyncTimer:
    """The next sync message of one participant."""

    def __init__(self, config: SdsParameters, channel_id: str, participant_id: str, repair: Repair | None) -> None:
        self._config = config
        self._channel_id = channel_id
        self._participant_id = participant_id
        self._repair = repair
        self.interval_due: int | None = None
        self.counter = 0
        """Own timestamped messages so far: each begins a round with its own jitter."""
        self._share: float | None = None
        self._waits: dict[float, int] = {}
        """Factor on the interval → wait (ms), in this round."""
        self.owing_since: int | None = None
        """Since when (ms) content of others has arrived without an own message that acknowledges it."""
        self._may_owe = min(MAX_OWED_KEPT, config.max_log_entries)
        if not config.acknowledge_within_ms or not config.sync_min_interval_ms:
            self._may_owe = 0
        self.owed: dict[str, str] = {}
        """Received content that only its sender has named: SDS id → sender id, oldest first."""
        self.owed_due: int | None = None
        self.unsent = ""
        """The last sync message while it waits to be dispatched, for an epoch of the rate limit for instance."""
        self.unsent_owed: dict[str, str] = {}
        """The owed ids that it names, with their senders."""

    @property
    def due(self) -> int | None:
        """When (ms) the next sync message is due, ``None`` for never."""
        if self.unsent:  # a second one beside it would take a slot and say little more
            return None
        if self.owed_due is None or self.interval_due is None:
            return self.owed_due if self.interval_due is None else self.interval_due
        return min(self.owed_due, self.interval_due)

    def restart(self, now: int) -> None:
        """Restart the interval: an own sync message was sent, or another's was heard, whose filter serves the whole
        channel."""
        self.owing_since = None
        self._restart(now, 1.0)

    def spoke(self, now: int) -> None:
        """Begin the next interval: an own message with history and filter was sent, or there was nothing to report."""
        self.counter += 1
        self._share = None
        self._waits.clear()
        self.interval_due = None
        self.restart(now)

    def restart_after_content(self, now: int) -> None:
        """Shorten the interval: content of another participant arrived."""
        if self.owing_since is None:
            self.owing_since = now
        # Not later, however much content follows: who only listens would never acknowledge a sender without pauses.
        latest = self.owing_since + self._config.sync_min_interval_ms
        if self.interval_due is None or now < latest:
            self._restart(now, self._config.sync_after_content)
            if self.interval_due is not None and self.interval_due > latest:
                self.interval_due = max(now, latest)

    def owe(self, message_id: str, sender_id: str) -> None:
        """Record content of ``sender_id`` that must be acknowledged once it is in the log."""
        if not self._may_owe:
            return
        self.owed[message_id] = sender_id
        drop_surplus(self.owed, self.owed.__getitem__, self._may_owe, self._may_owe // 8)

    def list_owed(self, is_nameable: Callable[[str], bool]) -> list[str]:
        """The owed ids that the next sync message names. Senders take turns, so that whoever sends much delays nobody
        else's acknowledgement."""
        in_turn = take_turns(filter(is_nameable, self.owed), self.owed.__getitem__)
        return [message_id for _, message_id in in_turn[:MAX_OWED]]

    def await_acknowledgement(self, message_id: str, now: int) -> None:
        """Start the wait if ``message_id`` is owed and in the log: a message that waits for its dependencies cannot be
        named."""
        if self.owed_due is None and message_id in self.owed:
            self.owed_due = now + self._draw_delay(message_id, self._config.acknowledge_within_ms)

    def remove_named(self, history: Iterable[HistoryEntry], by: str) -> None:
        """Remove the owed ids that a message of ``by`` names: ``by`` has acknowledged that content, unless it is its
        own."""
        owed = self.owed
        if not owed:
            return
        for entry in history:
            if owed.get(entry.message_id, by) != by:
                del owed[entry.message_id]
        if not owed:
            self.owed_due = None

    def settle(self, named: Iterable[str], is_nameable: Callable[[str], bool], now: int) -> None:
        """Start anew after an own sync message, which has ``named`` some of the owed ids."""
        settled = {message_id: self.owed.pop(message_id) for message_id in named if message_id in self.owed}
        self.unsent_owed = settled if self.unsent else {}
        self.owed_due = None
        for message_id in self.owed:
            if is_nameable(message_id):
                self.await_acknowledgement(message_id, now)
                break

    def record_sent(self, message_id: str, now: int) -> None:
        """Record that a sync message was dispatched, or never will be: the next interval begins at the earliest now."""
        if message_id == self.unsent:
            self.unsent = ""
            self.unsent_owed = {}
            if self.interval_due is not None and self.interval_due <= now:
                self.interval_due = None
                self.restart(now)

    def withdraw_unsent(self) -> None:
        """Record that the waiting sync message will not be dispatched: what it acknowledged is owed again."""
        self.unsent = ""
        # Before what came since: the oldest debt is named first.
        self.owed = {**self.unsent_owed, **self.owed}
        self.unsent_owed = {}

    def skip_to(self, now: int) -> None:
        """Skip all but one of the sync messages that were due during a long sleep."""
        if self.interval_due is not None and self.interval_due < now - CATCH_UP_MS:
            self.interval_due = now
        if self.owed_due is not None and self.owed_due < now - CATCH_UP_MS:
            self.owed_due = now

    def _draw_delay(self, message_id: str, within: int) -> int:
        """How long (ms, 1 to ``within``) this participant waits before it acknowledges; the first content decides."""
        # Drawn anew for each content: otherwise the same participant would always answer for all.
        share = self._config.jitter(self._channel_id, self._participant_id, zlib.crc32(message_id.encode()))
        return max(1, round(within * math.log1p(share * math.expm1(_STEEPNESS)) / _STEEPNESS))

    def _restart(self, now: int, factor: float) -> None:
        """Let the interval end a random time from ``now``, and no later than before if repair requests wait for it."""
        interval = self._config.sync_min_interval_ms
        if not interval:
            return
        if self._repair is not None and self._repair.requests:
            factor = self._config.sync_with_repairs
        wait = self._waits.get(factor)
        if wait is None:
            if self._share is None:
                self._share = self._config.jitter(self._channel_id, self._participant_id, self.counter)
            wait = self._waits[factor] = max(1, round(interval * factor * (1 + self._share)))
        due, before = now + wait, self.interval_due
        # Messages of others ask for nothing that only this participant lacks: heard often enough, they would put off
        # its request for ever.
        if self._repair is not None and before is not None and before < due and self._repair.request_is_due(before):
            due = max(now, before)
        self.interval_due = due
