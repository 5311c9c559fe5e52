"""Dispatches the events of the Messaging API to listeners (MESSAGING-API, *Event Source*).

Code that changes a record or the health calls :meth:`EventSource.emit` *after* the change is stored, so a look-up in a
listener always shows the change.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias

_log = logging.getLogger(__name__)


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


EventHandler: TypeAlias = Callable[[CustomEvent], object]


class EventSource:
    """Listeners by event name, called in the order in which they were added."""

    def __init__(self) -> None:
        self._handlers: dict[str, list[EventHandler]] = {name: [] for name in EventName}
        self._lock = threading.Lock()

    def add_event_listener(self, event_name: str, handler: EventHandler) -> None:
        """Call ``handler`` for every later event of this name. Unknown names are ignored; adding the same handler again
        changes nothing, as with DOM event targets."""
        with self._lock:
            handlers = self._handlers.get(event_name)
            if handlers is not None and handler not in handlers:
                handlers.append(handler)

    def remove_event_listener(self, event_name: str, handler: EventHandler) -> None:
        """Remove a listener; unknown ones are ignored."""
        with self._lock:
            handlers = self._handlers.get(event_name)
            if handlers is not None and handler in handlers:
                handlers.remove(handler)

    def emit(self, event: CustomEvent) -> None:
        """Call the listeners of ``event.type``. An exception of one is logged and does not affect the others. A
        listener that was removed by an earlier one of the same event is still called: the list is that of the moment of
        dispatch."""
        with self._lock:
            handlers = tuple(self._handlers[event.type])
        for handler in handlers:
            try:
                handler(event)
            except Exception:  # the seed: an exception of a listener is ignored, whatever it is
                _log.exception("a listener of %s raised; the event goes on to the others", event.type)
