"""Serializes every state change of a messaging node: one lock, one transaction, one order of events.

Every change happens inside :meth:`Ledger.step`. When the outermost step ends, its transaction is committed, and only
then are the events of its changes dispatched.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reliable_channel.messaging.config import MessagingConfig
from reliable_channel.messaging.events import CustomEvent, EventName, EventSource
from reliable_channel.messaging.idempotency import KeyStore
from reliable_channel.messaging.records import MessageRecord, events_of
from reliable_channel.messaging.requests import RequestStore
from reliable_channel.messaging.store import RecordStore
from reliable_channel.transport.clock import Clock, now_ms
from reliable_channel.transport.dispatcher import Task


class Ledger:
    """The stored state of one node."""

    def __init__(self, path: Path | str, config: MessagingConfig, clock: Clock) -> None:
        self.records = RecordStore(path, config.max_records, config.max_record_age_ms, config.max_record_bytes)
        self.requests = RequestStore(self.records)
        self.keys = KeyStore(self.records)
        self.events = EventSource()
        self._clock = clock
        self._lock = threading.RLock()
        self._pending: list[Task] | None = None
        """What runs after the open step; ``None`` outside a step."""
        self._if_lost: list[Task] = []
        """What runs if it is not stored."""

    def now(self) -> int:
        """Unix time in ms."""
        return now_ms(self._clock)

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        """Hold only the lock, for reading state that steps change. Raises ``ForkedError``."""
        self.records.owner.refuse_fork()
        with self._lock:
            yield

    @contextmanager
    def step(self, *, drain: bool = True) -> Iterator[None]:
        """One atomic change. Nested steps join the outer one. When it raises, nothing is stored and no event is
        dispatched. ``drain=False`` leaves its events to the next step, for a caller that holds a lock. Raises
        ``ForkedError`` in a forked process."""
        self.records.owner.refuse_fork()
        with self._lock:
            if self._pending is not None:
                yield
                return
            tasks: list[Task] = []
            self._pending, self._if_lost = tasks, []
            try:
                with self.records.transaction():
                    yield
            except BaseException:
                for task in reversed(self._if_lost):
                    task()
                raise
            finally:
                self._pending = None
            # Queued under the lock, so that listeners are called in the order of the commits; run outside it.
            for task in tasks:
                self.events.put(task)
        if drain:
            self.events.drain()  # a listener may wait for a thread that needs the lock

    def run_after(self, task: Task) -> None:
        """Run ``task`` after the current step is stored."""
        if self._pending is None:
            raise RuntimeError("run_after() belongs inside step()")
        self._pending.append(task)

    def run_if_lost(self, task: Task) -> None:
        """Run ``task`` if the current step is not stored, to undo what it changed in memory; the last one first."""
        self._if_lost.append(task)

    def add(self, record: MessageRecord, subscriptions: tuple[str, ...] = (), failed: bool = False) -> MessageRecord:
        """Insert a record and emit its events."""
        return self._emit_change(None, self.records.add(record, self.now(), subscriptions), failed)

    def update(self, record: MessageRecord, *, failed: bool = False, **changes: Any) -> MessageRecord:
        """Change a record (as :meth:`RecordStore.update`) and emit its events. ``failed``: an error occurred now."""
        return self._emit_change(record, self.records.update(record, **changes), failed)

    def emit(self, name: EventName, detail: object) -> None:
        """Notify the listeners of ``name`` after the current step."""
        event = CustomEvent(name, detail, self.now())
        self.run_after(lambda: self.events.emit(event))

    def _emit_change(self, before: MessageRecord | None, after: MessageRecord, failed: bool) -> MessageRecord:
        for name in events_of(before, after, failed):
            self.emit(name, after)
        return after
