"""The rate limit of a node, shared by its channels (protocol.md §6: one counter per node, as one membership has it).

The count is kept before the dispatch it allows, so a restart inside the epoch goes on counting; a crash between the two
counts one too many, never one too few.
"""

from __future__ import annotations

import json
import threading
from dataclasses import asdict, dataclass
from typing import Protocol

from reliable_channel.channel.effects import Dispatch as Wanted
from reliable_channel.rate_limit import (
    Delayed,
    Dispatch,
    EphemeralDropped,
    LimitApproaching,
    RateLimitConfig,
    RateLimitEvent,
    RateLimitManager,
    RateLimitSnapshot,
    Traffic,
)

VALUE = "rate_limit"


class KeepsValues(Protocol):
    """The part of a persistence that a limiter needs."""

    def get(self, name: str) -> bytes | None: ...

    def put(self, name: str, value: bytes) -> None: ...


class Applicant(Protocol):
    """A channel's pipeline, as the limiter sees it. Called under the limiter's lock: must not block."""

    def admitted(self, sealed: Sealed) -> None:
        """It may be dispatched now."""
        ...

    def told(self, event: Told) -> None:
        """Something to tell the application."""
        ...


@dataclass(frozen=True, slots=True)
class Sealed:
    """A dispatch after encryption: ``payload`` is what the envelope will hold (bytes)."""

    wanted: Wanted
    payload: bytes


@dataclass(frozen=True, slots=True)
class Ticket:
    """What waits for its turn, and for whom."""

    owner: Applicant
    sealed: Sealed
    message: str


Told = Delayed[Ticket] | EphemeralDropped[Ticket] | LimitApproaching


class NodeRateLimit:
    """The node's one :class:`RateLimitManager`, its count kept. ``now`` is Unix ms. Thread-safe."""

    def __init__(self, config: RateLimitConfig, kept: KeepsValues) -> None:
        self.config = config
        self._kept = kept
        self._lock = threading.Lock()
        value = kept.get(VALUE) if config.enabled else None
        self._snapshot = RateLimitSnapshot(**json.loads(value)) if value else None
        self._manager: RateLimitManager[Ticket] = RateLimitManager(config, self._snapshot)

    def submit(self, ticket: Ticket, traffic: Traffic, now: int) -> None:
        """Ask for a dispatch; ``owner.admitted`` follows, now or in a later epoch."""
        if not self.config.enabled:
            ticket.owner.admitted(ticket.sealed)
            return
        with self._lock:
            self._follow(self._manager.submit(ticket, traffic, now, ticket.message), ticket.owner)

    def tick(self, now: int, caller: Applicant) -> None:
        """Let what waits have its turn."""
        if self.config.enabled:
            with self._lock:
                self._follow(self._manager.tick(now), caller)

    def next_due(self) -> int | None:
        """When (ms) ``tick`` next has something to do."""
        with self._lock:
            return self._manager.next_due()

    def withdraw(self, message: str) -> None:
        """Take a message's waiting segments back."""
        with self._lock:
            self._manager.cancel(message)

    def _follow(self, events: list[RateLimitEvent[Ticket]], caller: Applicant) -> None:
        snapshot = self._manager.snapshot()
        if snapshot != self._snapshot:
            self._kept.put(VALUE, json.dumps(asdict(snapshot)).encode())
            self._snapshot = snapshot
        for event in events:
            match event:
                case Dispatch(item):
                    item.owner.admitted(item.sealed)
                case Delayed(item) | EphemeralDropped(item):
                    item.owner.told(event)
                case LimitApproaching():
                    caller.told(event)
