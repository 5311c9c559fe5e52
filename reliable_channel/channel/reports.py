"""Reports a channel's events to the application's listeners: in order, and at least once across crashes.

A received message is recorded as reported right after its callbacks return, so a crash repeats at most the message
whose callback it interrupted. Events about sends may be repeated without harm; they are recorded in one transaction at
the end of the round.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count

from reliable_channel.channel.events import ChannelEvent, MessageLost, MessageReceived
from reliable_channel.channel.journal import Journal
from reliable_channel.channel.steps import Report
from reliable_channel.core.shares import Shares
from reliable_channel.transport.dispatcher import Dispatcher

MAX_UNDELIVERED = 1_000
MAX_UNDELIVERED_BYTES = 16 * 1024 * 1024
"""Messages, and bytes of them, kept until somebody listens. Beyond that the oldest of the sender with most count as
reported."""


class UndeliveredEvents:
    """A bounded queue of received messages that nobody has listened for yet, in order."""

    def __init__(self) -> None:
        self._waiting: dict[int, Report] = {}
        self._shares = Shares[int](MAX_UNDELIVERED, MAX_UNDELIVERED_BYTES)
        self._numbers = count()

    def add(self, report: Report) -> list[Report]:
        """Append one; returns those that were removed to stay within the bounds."""
        self.restore([report])
        removed: list[Report] = []
        while (number := self._shares.take_surplus()) is not None:
            removed.append(self._waiting.pop(number))
        return removed

    def restore(self, reports: Iterable[Report]) -> None:
        """Append those that an earlier process left: all of them, however much had arrived when it ended."""
        for report, number in zip(reports, self._numbers, strict=False):
            self._waiting[number] = report
            self._shares.add(number, _get_sender(report), report.size)

    def take(self, listens: Callable[[ChannelEvent], bool]) -> Report | None:
        """Remove and return the first report that somebody listens for."""
        for number, report in self._waiting.items():
            if listens(report.event):
                self._shares.remove(number, _get_sender(report))
                return self._waiting.pop(number)
        return None

    def __iter__(self) -> Iterator[Report]:
        return iter(self._waiting.values())


def _get_sender(report: Report) -> str:
    """The sender of a message; of an event about an own send there is none."""
    return str(getattr(report.event, "sender_id", ""))


class ReportQueue:
    """The reports of one channel to its application, guarded by its ``lock``. ``wake`` requests another round."""

    def __init__(
        self,
        journal: Journal,
        listeners: Dispatcher[ChannelEvent],
        lock: threading.RLock,
        wake: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._listeners = listeners
        self._lock = lock
        self._wake = wake
        self._queue: deque[Report] = deque()
        self._undelivered = UndeliveredEvents()
        self._listener_added = True
        self._current: Report | None = None
        """The one whose callbacks run now."""
        self._reported: list[Report] = []
        """Those that are not recorded yet."""
        self.closed = False
        """Whether nothing is reported and recorded any more."""
        listeners.on_listener_added = self._on_listener_added

    # ---- queueing ------------------------------------------------------------------------------------------------

    def restore(self, reports: list[Report]) -> None:
        """Queue what the previous process did not report."""
        self._undelivered.restore(reports)

    def emit(self, event: ChannelEvent) -> None:
        """Queue an event that no restart reports again."""
        self._queue.append(Report(event))

    def enqueue(self, report: Report) -> None:
        """Queue a report, unless it was made before."""
        if self._journal.is_new(report):
            self._queue.append(report)

    def list_unreported(self) -> list[Report]:
        """The events not reported yet, in order; a snapshot contains them."""
        return [*self._undelivered, *self._queue]

    def _on_listener_added(self) -> None:
        """Deliver waiting events to a new listener in the next round. Called from any thread."""
        self._listener_added = True
        self._wake()

    # ---- reporting -----------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Call the listeners with every queued event. Must be called without the lock."""
        while (report := self._next()) is not None:
            self._listeners.emit(report.event)
            with self._lock:
                self._reported.append(report)
                self._current = None
                if report.key and isinstance(report.event, MessageReceived):
                    self._record()
        with self._lock:
            self._record()

    def close(self, *, sound: bool) -> None:
        """Stop reporting. When the state is ``sound``, record what was reported, including the event whose callback
        closed the channel. Nothing is recorded after that."""
        with self._lock:
            if self._current is not None:
                self._reported.append(self._current)
            if sound:
                self._record()
            self.closed = True

    def _next(self) -> Report | None:
        """The next event to report. Events that waited for a listener come first, so that sequence numbers rise."""
        with self._lock:
            if self.closed and self._journal.keeps:
                return None  # a callback closed the channel; the snapshot has the rest
            self._current = self._take_undelivered()
            while self._current is None and self._queue:
                report = self._queue.popleft()
                if self._must_wait_for_listener(report):
                    self._reported += self._undelivered.add(report)
                else:
                    self._current = report
            if self._current is not None:
                self._current = self._journal.number(self._current)
            return self._current

    def _take_undelivered(self) -> Report | None:
        """The first waiting event that somebody listens for; searched only after a listener was added."""
        if not self._listener_added:
            return None
        self._listener_added = False  # before the search: a listener added during it causes another one
        report = self._undelivered.take(self._listeners.listens)
        self._listener_added = self._listener_added or report is not None
        return report

    def _must_wait_for_listener(self, report: Report) -> bool:
        """Whether a received or lost message is kept for the next listener, in this process or a later one."""
        is_message = bool(report.key) and isinstance(report.event, MessageReceived | MessageLost)
        return is_message and self._journal.keeps and not self._listeners.listens(report.event)

    def _record(self) -> None:
        reported, self._reported = self._reported, []
        if not self.closed:
            self._journal.mark_reported(reported)
