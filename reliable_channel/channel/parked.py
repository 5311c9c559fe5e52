"""Keeps the payloads of a channel's overdue sets in its database; see
:mod:`reliable_channel.core.segmentation.parking`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from reliable_channel.channel.persistence import ChannelKey, Persistence


class ParkedSegments:
    """The payloads of one channel. ``read_only``: what is put stays in memory, for a look at a channel that somebody
    else may use."""

    def __init__(self, persistence: Persistence, key: ChannelKey, *, read_only: bool = False) -> None:
        self._persistence = persistence
        self._key = key
        self._own: dict[int, bytes] | None = {} if read_only else None

    def put(self, payloads: Mapping[int, bytes]) -> None:
        """Store payloads by number."""
        if self._own is not None:
            self._own.update(payloads)
        else:
            self._persistence.put_segments(self._key, payloads)

    def get(self, numbers: Collection[int]) -> Mapping[int, bytes]:
        """The payloads of these numbers."""
        own = {number: self._own[number] for number in numbers if self._own is not None and number in self._own}
        return own | self._persistence.segments(self._key, [number for number in numbers if number not in own])

    def keep(self, numbers: Collection[int]) -> None:
        """Remove all other payloads."""
        if self._own is None:
            self._persistence.keep_segments(self._key, numbers)
