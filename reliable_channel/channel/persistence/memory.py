"""Persists in memory until the process ends (``historyBackend: memory``); tests reopen channels on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from reliable_channel.channel.persistence.base import ChannelKey, LabelledSend
from reliable_channel.channel.persistence.sqlite import SqlitePersistence
from reliable_channel.transport.sqlite import IN_MEMORY


class MemoryPersistence(SqlitePersistence):
    """``keeps_journal=False`` (the default) keeps sequence, labels and node values only: no later process could read a
    journal. ``True`` makes it behave as a durable backend whose owner crashes and comes back."""

    def __init__(self, *, keeps_journal: bool = False) -> None:
        super().__init__(IN_MEMORY)
        self.keeps_journal = keeps_journal

    def acquire(self, sender_id: str, key: ChannelKey | None = None) -> Callable[[], None]:
        """Locks nothing: no other process can use this database, and an owner that crashed releases nothing."""
        return lambda: None

    def append(
        self,
        key: ChannelKey,
        entries: Sequence[bytes],
        fingerprint: str,
        labelled: LabelledSend | None = None,
        delivered: Sequence[str] = (),
    ) -> None:
        super().append(key, entries if self.keeps_journal else (), fingerprint, labelled, delivered)

    def compact(self, key: ChannelKey, snapshot: bytes, fingerprint: str) -> None:
        if self.keeps_journal:
            super().compact(key, snapshot, fingerprint)

    def mark_reported(self, key: ChannelKey, events: Sequence[str], sequence: int) -> None:
        super().mark_reported(key, events if self.keeps_journal else (), sequence)

    def close(self) -> None:
        """Nothing to release; the values stay, so that a test can open again."""
