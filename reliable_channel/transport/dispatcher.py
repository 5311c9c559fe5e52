"""Calls listeners with events, one at a time and in order; a listener that raises affects nobody else.

The one event dispatcher of nodes, the Messaging API and reliable channels. Events are passed on at once
(:meth:`Dispatcher.emit`), or in the order of a queue of tasks, so that no transport thread and no holder of a lock runs
application code. The queue is emptied by a thread of its own (:meth:`Dispatcher.start`), or by the threads that fill it
(:meth:`Dispatcher.drain`).
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from reliable_channel.core.errors import LocalError
from reliable_channel.transport.threads import join

_log = logging.getLogger(__name__)

E = TypeVar("E")
Task: TypeAlias = Callable[[], object]
Listener: TypeAlias = Callable[[Any], object]
Kind: TypeAlias = str | type
"""Which events a listener receives: those of a class, or those with this ``name`` or alias."""

MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 * 1024 * 1024
"""The maximum number of bounded tasks that wait for the listeners, and of the bytes that they hold; beyond these the
caller waits (back-pressure)."""


def matches(event: object, kind: Kind) -> bool:
    """Whether an event is of that class, or has that name."""
    if isinstance(kind, type):
        return isinstance(event, kind)
    return kind == getattr(event, "name", None) or kind in getattr(event, "aliases", ())


@dataclass(frozen=True, slots=True, eq=False)
class _Registration:
    kinds: tuple[Kind, ...]
    listener: Listener

    def wants(self, event: object) -> bool:
        return any(matches(event, kind) for kind in self.kinds)


class Dispatcher(Generic[E]):
    """Listeners of events, and a queue of tasks that call them. ``name`` names the thread; ``events``: the classes of
    all events, to refuse listeners of others. Thread-safe."""

    def __init__(self, name: str = "node", events: Sequence[type[Any]] = ()) -> None:
        self.on_listener_added: Callable[[], None] = lambda: None
        """Called after a listener was added."""
        self._name = name
        self._events = tuple(events)
        self._names = [name for event in self._events for name in (event.name, *getattr(event, "aliases", ()))]
        self._registrations: tuple[_Registration, ...] = ()
        self._tasks: deque[tuple[Task, int | None]] = deque()
        """With the bytes that each holds; ``None``: not bounded here."""
        self._waiting = 0
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._started = False
        self._thread: threading.Thread | None = None
        self._draining = threading.Lock()
        self._drainer: int | None = None

    # ---- listeners -----------------------------------------------------------------------------------------------

    def on(self, *kinds: Kind, call: Listener) -> Callable[[], None]:
        """Call ``call(event)`` for every later event of these kinds, after the listeners added before it. Returns a
        function that ends it, harmless when called twice. Raises ``LocalError`` for a kind that no event here is of,
        and for what cannot be called, or is asynchronous: nobody would await it."""
        for kind in kinds:
            if self._events and not self._is_known(kind):
                shown = kind.__name__ if isinstance(kind, type) else repr(kind)
                raise LocalError(f"There is no event {shown} here.", f"Use one of {', '.join(sorted(self._names))}.")
        given: Any = call
        if not callable(given) or any(map(inspect.iscoroutinefunction, (given, given.__call__))):
            raise LocalError(
                "A listener is a plain function.",
                "Let it schedule what is asynchronous; a channel has `async for event in channel.events()`.",
            )
        added = _Registration(kinds, call)
        with self._changed:
            self._registrations = (*self._registrations, added)
        self.on_listener_added()

        def remove() -> None:
            with self._changed:
                self._registrations = tuple(one for one in self._registrations if one is not added)

        return remove

    def _is_known(self, kind: Kind) -> bool:
        if not isinstance(kind, type):
            return kind in self._names
        return any(issubclass(event, kind) or issubclass(kind, event) for event in self._events)

    def has(self, kind: Kind, listener: Listener) -> bool:
        """Whether this listener was added for this kind."""
        return any(kind in one.kinds and one.listener == listener for one in self._registrations)

    def remove(self, kind: Kind, listener: Listener) -> None:
        """Remove a listener of this kind; unknown ones are ignored."""
        with self._changed:
            # Equality, not identity: every access to a bound method makes a new object.
            self._registrations = tuple(
                one for one in self._registrations if kind not in one.kinds or one.listener != listener
            )

    def listens(self, event: E) -> bool:
        """Whether a listener for this event exists now."""
        return any(one.wants(event) for one in self._registrations)

    def emit(self, event: E) -> None:
        """Call the listeners of an event in this thread. A listener that an earlier one removes is still called."""
        for one in self._registrations:  # a tuple that changes replace: listeners may add and remove others
            if one.wants(event):
                try:
                    one.listener(event)
                except Exception:  # of the application, and whatever it is: the others must still be called
                    _log.exception("a listener of %s raised; the others are still called", type(event).__name__)

    # ---- the queue -----------------------------------------------------------------------------------------------

    def put(self, task: Task) -> None:
        """Run ``task`` after everything put before it. Never blocks: for events that some other bound already limits
        (one per accepted send)."""
        with self._changed:
            self._tasks.append((task, None))
            self._changed.notify_all()

    def put_bounded(self, task: Task, size: int) -> bool:
        """The same for a task that holds ``size`` bytes, waiting while too many of its kind wait; ``False`` when the
        thread was stopped meanwhile and the task was not accepted."""
        with self._changed:
            # Alone, a task of any size passes: one over the bound would wait for ever.
            while self._started and self._waiting and not self._has_room(size):
                self._changed.wait()
            if not self._started:
                return False
            self._waiting += 1
            self._waiting_bytes += size
            self._tasks.append((task, size))
            self._changed.notify_all()
            return True

    def _has_room(self, size: int) -> bool:
        return self._waiting < MAX_WAITING and self._waiting_bytes + size <= MAX_WAITING_BYTES

    def drain(self, wait: bool = False) -> None:
        """Run waiting tasks, unless another thread does so: then this one waits for it with ``wait``, or if very many
        wait (back-pressure), and else returns. Never call it while holding a lock that a listener may need."""
        # A task that puts another one must end first: events are in order.
        while self._tasks and self._drainer != threading.get_ident():
            if not self._draining.acquire(blocking=wait or len(self._tasks) > MAX_WAITING):
                return
            self._drainer = threading.get_ident()
            try:
                while (task := self._next()) is not None:
                    try:
                        task()
                    except Exception:  # a fault in one task; the tasks behind it must still run
                        _log.exception("a task of %s raised; the next one follows", self._name)
            finally:
                self._drainer = None
                self._draining.release()

    def start(self) -> None:
        """Run tasks on a thread of its own until :meth:`stop`. Starting twice does nothing."""
        with self._changed:
            if self._started:
                return
            self._started = True
            self._thread = threading.Thread(target=self._run, name=f"{self._name}-events", daemon=True)
            self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Run waiting tasks, then end the thread. Called from a listener, it does not wait for itself."""
        with self._changed:
            self._started = False
            self._changed.notify_all()
            thread, self._thread = self._thread, None
        if thread is not None and not join(thread, timeout_s):
            _log.error("a listener of %s did not return within %s s; its thread is left behind", self._name, timeout_s)

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._changed:
                while self._thread is me and not self._tasks:
                    self._changed.wait()
                if not self._tasks or self._thread not in (me, None):
                    return  # the thread of a later start has the rest
            try:
                self.drain(wait=True)
            except BaseException:  # sys.exit() in a listener would end this thread silently
                _log.exception("a listener of %s exited; the next task follows", self._name)

    def _next(self) -> Task | None:
        with self._changed:
            if not self._tasks:
                return None
            task, size = self._tasks.popleft()
            if size is not None:
                self._waiting -= 1
                self._waiting_bytes -= size
                self._changed.notify_all()
            return task
