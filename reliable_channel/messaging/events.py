"""Dispatches the events of the Messaging API to listeners (MESSAGING-API, *Event Source*).

Code that changes a record or the health calls :meth:`EventSource.emit` *after* the change is stored, so a look-up in a
listener always shows the change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from reliable_channel.transport.dispatcher import Dispatcher
from reliable_channel.transport.health import HealthState


class EventName(StrEnum):
    """All event names; listeners of other names are ignored."""

    HEALTH_CHANGE = "health:change"
    MESSAGE_CHANGE = "message:change"
    MESSAGE_SENT = "message:sent"
    MESSAGE_ERROR = "message:error"
    MESSAGE_RECEIVED = "message:received"
    MESSAGE_STORED = "message:stored"


@dataclass(frozen=True, slots=True)
class CustomEvent:
    """``detail`` is the payload: a ``HealthStatus`` for ``health:change``, else the updated ``MessageRecord``.
    ``timestamp_ms`` is the Unix time of the change in ms."""

    type: EventName
    detail: Any
    timestamp_ms: int

    @property
    def name(self) -> str:
        """What listeners name it by."""
        return self.type


HealthStatus = HealthState
"""The specified name of the three states."""

EventHandler: TypeAlias = Callable[[CustomEvent], object]


class EventSource(Dispatcher[CustomEvent]):
    """Listeners by event name, called in the order in which they were added, with the specified names of its calls."""

    def add_event_listener(self, event_name: str, handler: EventHandler) -> None:
        """Call ``handler`` for every later event of this name. Unknown names are ignored; adding the same handler again
        changes nothing, as with DOM event targets."""
        if not self.has(event_name, handler):
            self.on(event_name, call=handler)

    def remove_event_listener(self, event_name: str, handler: EventHandler) -> None:
        """Remove a listener; unknown ones are ignored."""
        self.remove(event_name, handler)
