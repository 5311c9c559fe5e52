"""Persists in memory until the process ends (``historyBackend: memory``); tests reopen channels on it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from reliable_channel.channel.persistence.base import ChannelKey, LabelledSend, StoredChannel


@dataclass(slots=True)
class _ChannelRecords:
    snapshot: bytes | None = None
    journal: list[bytes] = field(default_factory=list)
    reported: set[str] = field(default_factory=set)
    sequence: int = 0
    fingerprint: str = ""
    labels: dict[str, LabelledSend] = field(default_factory=dict)
    segments: dict[int, bytes] = field(default_factory=dict)


class MemoryPersistence:
    """``keeps_journal=False`` (the default) keeps sequence and node values only: no later process could read a journal.
    ``True`` makes it behave as a durable backend whose owner crashes and comes back."""

    def __init__(self, *, keeps_journal: bool = False) -> None:
        self.keeps_journal = keeps_journal
        self._lock = threading.Lock()
        self._channels: dict[ChannelKey, _ChannelRecords] = {}
        self._values: dict[str, bytes] = {}
        self._holders: dict[str, int] = {}
        self._sender_id: str | None = None

    def acquire(self, sender_id: str, key: ChannelKey | None = None) -> Callable[[], None]:
        with self._lock:
            self._holders[sender_id] = self._holders.get(sender_id, 0) + 1
        released = False

        def release() -> None:
            nonlocal released
            with self._lock:
                if not released:
                    released = True
                    self._holders[sender_id] = max(0, self._holders[sender_id] - 1)

        return release

    def sender_id(self) -> str:
        with self._lock:
            self._sender_id = self._sender_id or uuid.uuid4().hex
            return self._sender_id

    def load(self, key: ChannelKey) -> StoredChannel:
        with self._lock:
            kept = self._channels.get(key, _ChannelRecords())
            return StoredChannel(
                kept.snapshot, tuple(kept.journal), frozenset(kept.reported), kept.sequence, kept.fingerprint
            )

    def append(
        self, key: ChannelKey, entries: Sequence[bytes], fingerprint: str, labelled: LabelledSend | None = None
    ) -> None:
        with self._lock:
            kept = self._channels.setdefault(key, _ChannelRecords())
            if labelled is not None:
                kept.labels[labelled.label] = labelled
            if not self.keeps_journal:
                return
            kept.journal.extend(entries)
            kept.fingerprint = fingerprint

    def forget_label(self, key: ChannelKey, label: str) -> None:
        with self._lock:
            if (kept := self._channels.get(key)) is not None:
                kept.labels.pop(label, None)

    def labelled(self, key: ChannelKey, label: str) -> LabelledSend | None:
        with self._lock:
            kept = self._channels.get(key)
            return kept.labels.get(label) if kept is not None else None

    def compact(self, key: ChannelKey, snapshot: bytes, fingerprint: str) -> None:
        if not self.keeps_journal:
            return
        with self._lock:
            kept = self._channels.setdefault(key, _ChannelRecords())
            kept.snapshot = snapshot
            kept.fingerprint = fingerprint
            kept.journal.clear()
            kept.reported.clear()

    def mark_reported(self, key: ChannelKey, events: Sequence[str], sequence: int) -> None:
        with self._lock:
            kept = self._channels.setdefault(key, _ChannelRecords())
            kept.sequence = sequence
            if self.keeps_journal:
                kept.reported.update(events)

    def forget(self, key: ChannelKey) -> None:
        with self._lock:
            self._channels.pop(key, None)

    def put_segments(self, key: ChannelKey, payloads: Mapping[int, bytes]) -> None:
        with self._lock:
            self._channels.setdefault(key, _ChannelRecords()).segments.update(payloads)

    def segments(self, key: ChannelKey, numbers: Collection[int]) -> dict[int, bytes]:
        with self._lock:
            kept = self._channels.get(key, _ChannelRecords()).segments
            return {number: kept[number] for number in numbers if number in kept}

    def keep_segments(self, key: ChannelKey, numbers: Collection[int]) -> None:
        with self._lock:
            if (kept := self._channels.get(key)) is not None:
                kept.segments = {number: data for number, data in kept.segments.items() if number in numbers}

    def get(self, name: str) -> bytes | None:
        with self._lock:
            return self._values.get(name)

    def put(self, name: str, value: bytes) -> None:
        with self._lock:
            self._values[name] = value

    def close(self) -> None:
        """Nothing to release; the values stay, so that a test can open again."""
