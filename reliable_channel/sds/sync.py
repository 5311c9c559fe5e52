"""When to send a sync message: a random back-off that all participants of a channel share (protocol.md §5, *Sync*)."""

from __future__ import annotations

from reliable_channel.sds.config import SdsConfig

CATCH_UP_MS = 3_600_000
"""A participant that slept longer than this does not send the sync messages of all that time."""


class SyncTimer:
    """The next sync message of one participant."""

    def __init__(self, config: SdsConfig, channel_id: str, participant_id: str) -> None:
        self._config = config
        self._channel_id = channel_id
        self._participant_id = participant_id
        self.due: int | None = None
        self.counter = 0
        """Own timestamped messages so far: each begins a round with a jitter of its own."""
        self._share: float | None = None
        self.owing_since: int | None = None
        """Since when others' content has come without a message of one's own to acknowledge it."""

    def restart(self, now: int, repairs_pending: bool = False) -> None:
        """A sync message of someone's was heard: its filter acknowledges for the channel, nothing is owed any more."""
        self.owing_since = None
        self._restart(now, self._config.sync_with_repairs if repairs_pending else 1.0)

    def spoke(self, now: int, repairs_pending: bool = False) -> None:
        """An own message went out with history and filter (or there was nothing to say): the next round begins."""
        self.counter += 1
        self._share = None
        self.restart(now, repairs_pending)

    def content_heard(self, now: int, repairs_pending: bool) -> None:
        """Content of someone else's was heard: acknowledge it soon.

        Content alone puts the sync off only up to one full interval after the first of it: a participant that only
        listens would else never acknowledge a sender that never pauses.
        """
        if self.owing_since is None:
            self.owing_since = now
        factor = self._config.sync_with_repairs if repairs_pending else self._config.sync_after_content
        latest = self.owing_since + self._config.sync_min_interval_ms
        if self.due is None or now < latest:
            self._restart(now, factor)
            if self.due is not None:
                self.due = max(now, min(self.due, latest))

    def skip_to(self, now: int) -> None:
        """After a long sleep: forget the sync messages that were due in it."""
        if self.due is not None and self.due < now - CATCH_UP_MS:
            self.due = now

    def _restart(self, now: int, factor: float) -> None:
        interval = self._config.sync_min_interval_ms
        if interval:
            if self._share is None:
                self._share = self._config.jitter(self._channel_id, self._participant_id, self.counter)
            self.due = now + max(1, round(interval * factor * (1 + self._share)))
