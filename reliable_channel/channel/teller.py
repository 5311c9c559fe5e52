"""Tells the application what there is to tell, and notes what it was told: at least once, in order, over crashes.

A message is noted right after its callbacks returned, so that a crash repeats no more than the one whose callback it
interrupts. What is told of sends may be repeated without harm, and is noted in one transaction at the end of the round.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

from reliable_channel.channel.effects import Deliver, Emit
from reliable_channel.channel.events import ChannelEvent, MessageReceived
from reliable_channel.channel.journal import Journal
from reliable_channel.channel.outbox import Telling, Unheard


class Audience(Protocol):
    """Who is told what happens. Called without the channel's lock."""

    def emit(self, event: ChannelEvent) -> None:
        """Tell everybody who listens for it."""
        ...

    def listens(self, event: ChannelEvent) -> bool:
        """Whether somebody listens for it."""
        ...


class Teller:
    """One channel's tellings, guarded by the channel's ``lock``; ``wake`` asks for another round."""

    def __init__(self, journal: Journal, audience: Audience, lock: threading.RLock, wake: Callable[[], None]) -> None:
        self._journal = journal
        self._audience = audience
        self._lock = lock
        self._wake = wake
        self._untold: deque[Telling] = deque()
        self._unheard = Unheard()
        self._somebody_joined = True
        self._telling: Telling | None = None
        self._told: list[Telling] = []
        self._ended = False

    # ---- what there is to tell -----------------------------------------------------------------------------------

    def restore(self, tellings: list[Telling]) -> None:
        """Take what the process before this one left untold."""
        for telling in tellings:
            self._told += self._unheard.add(telling)

    def say(self, event: ChannelEvent) -> None:
        """Tell an event of this moment, which no restart tells again."""
        self._untold.append(Telling(event))

    def queue(self, effect: Deliver | Emit) -> None:
        """Tell what the state machine says, unless it was told before."""
        telling = self._journal.telling(effect)
        if telling is not None:
            self._untold.append(telling)

    def waiting(self) -> list[Telling]:
        """What is still to be told, in order: a snapshot takes it along."""
        return [*self._unheard, *self._untold]

    def on_listener(self) -> None:
        """Somebody began to listen; from any thread."""
        self._somebody_joined = True
        self._wake()

    # ---- telling -------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """Call the application with everything there is to tell. Call it without the lock."""
        while (telling := self._next()) is not None:
            self._audience.emit(telling.event)
            with self._lock:
                self._told.append(telling)
                self._telling = None
                if telling.mark and isinstance(telling.event, MessageReceived):
                    self._note()
        with self._lock:
            self._note()

    def end(self, *, sound: bool) -> None:
        """Where the state is ``sound``, note what was told, the event whose callback closes the channel included.
        Nothing is noted after that."""
        with self._lock:
            if self._telling is not None:
                self._told.append(self._telling)
            if sound:
                self._note()
            self._ended = True

    def _next(self) -> Telling | None:
        """What waited for somebody who listens comes first: numbers rise, whoever listens when."""
        with self._lock:
            if self._ended and self._journal.keeps:
                return None  # a callback closed the channel; the snapshot has the rest
            self._telling = self._heard_at_last()
            while self._telling is None and self._untold:
                telling = self._untold.popleft()
                if self._waits_to_be_heard(telling):
                    self._told += self._unheard.add(telling)
                else:
                    self._telling = telling
            return self._telling

    def _heard_at_last(self) -> Telling | None:
        """Of what waited, the first that somebody listens for; looked for only after somebody has joined."""
        if not self._somebody_joined:
            return None
        self._somebody_joined = False  # before the look: who joins during it is looked for again
        found = self._unheard.take(self._audience.listens)
        self._somebody_joined = self._somebody_joined or found is not None
        return found

    def _waits_to_be_heard(self, telling: Telling) -> bool:
        """A message is kept for whoever listens next, in this process or a later one."""
        is_message = bool(telling.mark) and isinstance(telling.event, MessageReceived)
        return is_message and self._journal.keeps and not self._audience.listens(telling.event)

    def _note(self) -> None:
        told, self._told = self._told, []
        if not self._ended:
            self._journal.told(told)
