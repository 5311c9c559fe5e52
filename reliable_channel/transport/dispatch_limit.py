"""Applies the rate limit where envelopes are dispatched: one count per RLN membership (17/RLN-RELAY), kept across
restarts.

The count is written before the dispatch that it allows: a crash between the two counts one envelope too many, never one
too few. Processes that dispatch through the same Waku node share a count file, and so its membership.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.rate_limit import (
    RateLimitConfig,
    RateLimitEvent,
    RateLimitManager,
    RateLimitSnapshot,
    Traffic,
)
from reliable_channel.transport.private_files import replace_file

_log = logging.getLogger(__name__)

Item = TypeVar("Item")

VALUE = "rate_limit"
"""The name of the count in a channel's persistence."""
_RLN = re.compile(r"\brln|rate.?limit.?proof", re.IGNORECASE)


class Count(Protocol):
    """The storage of a count."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing is stored any more."""

    def hold_lock(self) -> AbstractContextManager[None]:
        """Lock the count against others that share it."""

    def read(self) -> RateLimitSnapshot | None:
        """The count as it was last written."""

    def write(self, snapshot: RateLimitSnapshot) -> None:
        """Store the count; it survives a crash once this has returned."""


class KeepsValues(Protocol):
    """The part of a channel's persistence that stores a count."""

    def get(self, name: str) -> bytes | None: ...

    def put(self, name: str, value: bytes) -> None: ...


class KeptCount:
    """A count in a channel's persistence, or in memory only."""

    def __init__(self, kept: KeepsValues | None = None) -> None:
        self._kept = kept
        self._lock = threading.RLock()
        self.is_closed = False

    def close(self) -> None:
        """Store nothing any more: the persistence is about to close."""
        with self._lock:
            self._kept, self.is_closed = None, True

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        with self._lock:
            yield

    def read(self) -> RateLimitSnapshot | None:
        value = None if self._kept is None else self._kept.get(VALUE)
        return None if value is None else RateLimitSnapshot(**json.loads(value))

    def write(self, snapshot: RateLimitSnapshot) -> None:
        if self._kept is not None:
            self._kept.put(VALUE, json.dumps(asdict(snapshot)).encode())


class CountFile:
    """A count in a file that processes share."""

    is_closed = False

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def of_node(cls, run_dir: str, address: str) -> CountFile:
        """The count of the membership of the Waku node at ``address``, an URL."""
        name = hashlib.sha256(address.encode()).hexdigest()[:16]
        return cls(Path(run_dir) / "rate_limit" / f"{name}.json")

    @contextmanager
    def hold_lock(self) -> Iterator[None]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # A file of its own: `write` replaces the count's, and a lock belongs to the file that was opened.
        with self._path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def read(self) -> RateLimitSnapshot | None:
        try:
            count = json.loads(self._path.read_text(encoding="utf-8"))
            numbers = [count[name] for name in ("epoch", "epoch_size_ms", "used")]
            if any(type(number) is not int for number in numbers) or numbers[1] < 1:
                raise ValueError
            return RateLimitSnapshot(numbers[0], numbers[1], numbers[2], bool(count["announced"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            raise EnvironmentFault(
                f"{self._path} is not the count of a rate limit.",
                "Move it away when the epoch is over; until then nothing is dispatched.",
            ) from None

    def write(self, snapshot: RateLimitSnapshot) -> None:
        replace_file(self._path, json.dumps(asdict(snapshot)))


class DispatchLimit(Generic[Item]):
    """A :class:`RateLimitManager` over a stored count. Thread-safe. ``now`` is Unix ms."""

    def __init__(self, config: RateLimitConfig | None = None, *counts: Count) -> None:
        self.config = config or RateLimitConfig()
        self.counts = counts
        """The first that is not closed stores the count."""
        self._unstored = KeptCount()
        self._lock = threading.Lock()
        self._manager: RateLimitManager[Item] = RateLimitManager(self.config)
        self._rln: bool | None = None
        self._rln_reported = False

    def configure(self, config: RateLimitConfig) -> None:
        """Dispatch within another limit from now on. What waits goes on waiting."""
        with self._lock:
            self.config = config
            is_on = config.enabled or (config.enabled is None and self._rln)
            self._manager = self._manager.copy(replace(config, enabled=True) if is_on else config)

    def add_count(self, count: Count) -> None:
        """Store the count in ``count`` when all that were added before it are closed."""
        with self._lock:
            self.counts = (*(one for one in self.counts if not one.is_closed), count)

    @property
    def enabled(self) -> bool:
        """Whether dispatch is limited: by configuration, or as the node has RLN on."""
        return bool(self._manager.config.enabled)

    @property
    def waiting(self) -> int:
        """How many items wait for a later epoch."""
        return self._manager.waiting

    def submit(self, item: Item, traffic: Traffic, now: int) -> list[RateLimitEvent[Item]]:
        """Decide about one more item and the items that wait before it. Raises ``EnvironmentFault`` when the count
        cannot be read, and dispatches nothing then."""
        with self._lock, self._load_and_store_count():
            return self._manager.submit(item, traffic, now)

    def tick(self, now: int) -> list[RateLimitEvent[Item]]:
        """The items whose turn it is now. Raises as :meth:`submit`."""
        with self._lock:
            if not self._manager.is_due(now):
                return []
            with self._load_and_store_count():
                return self._manager.tick(now)

    def next_due(self) -> int | None:
        """When (ms) :meth:`tick` must run next."""
        with self._lock:
            return self._manager.next_due()

    def withdraw(self, matches: Callable[[Item], bool]) -> bool:
        """Remove the waiting item that ``matches``; returns whether there was one."""
        with self._lock:
            return self._manager.withdraw(matches)

    def drain(self) -> list[Item]:
        """Remove and return all waiting items."""
        with self._lock:
            return self._manager.drain()

    def node_has_rln(self, has_rln: bool | None, node: str) -> None:
        """Note whether RLN is on at the Waku node, ``None`` if unknown: with ``enabled`` unset, the limit is on if RLN
        is. One line in the log states the result."""
        with self._lock:
            if self._rln_reported and has_rln in (None, self._rln):
                return
            self._rln_reported = True
            self._rln = has_rln
            configured, limit = self.config.enabled, self.config
            if has_rln and configured is False:
                _log.warning(
                    "RLN is on at %s, and rate_limit.enabled is false: "
                    "the node refuses what is over its membership's limit.",
                    node,
                )
            elif has_rln and configured is None:
                self._manager.config = replace(limit, enabled=True)
                _log.warning(
                    "RLN is on at %s: %d envelopes are dispatched per epoch of %d s (rate_limit).",
                    node,
                    limit.messages_per_epoch,
                    limit.epoch_size_ms // 1000,
                )
            elif has_rln is None and configured is None:
                _log.info("%s does not say whether RLN is on: there is no rate limit until it refuses for RLN.", node)

    def note_refusal(self, detail: str, node: str) -> None:
        """Note a node's refusal: one that mentions RLN shows that RLN is on."""
        if not self._rln and _RLN.search(detail):
            self.node_has_rln(True, node)

    @contextmanager
    def _load_and_store_count(self) -> Iterator[None]:
        """Load the stored count, and store the new count before anything is dispatched under it."""
        if not self._manager.config.enabled:
            yield
            return
        count = next((one for one in self.counts if not one.is_closed), self._unstored)
        with count.hold_lock():
            kept = count.read()
            if kept is not None:
                self._manager.adopt(kept)
            before = self._manager.mark()
            try:
                yield
                if (snapshot := self._manager.snapshot()) != kept:
                    count.write(snapshot)
            except BaseException:
                self._manager.undo(before)  # nobody learns of what was admitted: it waits again
                raise
