"""Represents a channel key (pubsub topic, content topic, channel id) in addresses and SQL conditions."""

from __future__ import annotations

import json
from typing import NamedTuple


class ChannelFilter(NamedTuple):
    """A part may be null. ``where()`` and ``parameters`` belong together, in queries of ``report.snapshot``."""

    pubsub_topic: str | None
    content_topic: str | None
    channel_id: str | None

    @classmethod
    def from_subject(cls, subject: str | None) -> ChannelFilter | None:
        """The channel that is the subject of an alert (a JSON list of the three), or None."""
        try:
            key = json.loads(subject or "")
        except (ValueError, RecursionError):
            return None
        is_key = isinstance(key, list) and len(key) == 3 and all(part is None or isinstance(part, str) for part in key)
        return cls(*key) if is_key else None

    def where(self) -> str:
        """The condition for rows of this channel. Plain equality, which can skip files: of tables that maintenance has
        ordered, only some files are read."""
        return " AND ".join(
            f"{name} IS NULL" if value is None else f"{name} = $key_{name}" for name, value in self._asdict().items()
        )

    @property
    def parameters(self) -> dict[str, str]:
        """The values of :meth:`where`."""
        return {f"key_{name}": value for name, value in self.query.items()}

    @property
    def query(self) -> dict[str, str]:
        """For an address; a part that is null is left out."""
        return {name: value for name, value in self._asdict().items() if value is not None}
