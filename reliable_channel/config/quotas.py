"""Configures the quotas of one sender, channel and content topic, and of all together (docs/quarantine.md,
*Quotas*)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic import Field

from reliable_channel.config.section import Bytes, Count, PositiveMilliseconds, Section

FULL_SENDERS = {"channel": 4, "content_topic": 10, "pattern": 20, "pubsub_topic": 30}
"""How many senders at their own limits the shared quotas hold."""


class Quota(Section):
    """The limits of one window: SDS messages, bytes of their content, ids and hints, segments (each opens at most one
    set), and ids that histories and repair requests name (each becomes missing, and is fetched, at most once)."""

    messages: Count = 100_000
    bytes: Bytes = 2**29
    segments: Count = 50_000
    named_ids: Count = 5_000_000

    def times(self, senders: int) -> Quota:
        """The quota that so many senders may use together."""
        return Quota(**{name: value * senders for name, value in self.model_dump().items()})


def _make_default(name: str) -> Callable[[dict[str, Any]], Quota]:
    """The default of a shared quota, from the fields before it."""
    return lambda given: given.get("sender", Quota()).times(FULL_SENDERS[name])


class QuotaSettings(Section):
    """Checked in ingest, before rows reach keyed state; messages above a quota are quarantined as ``over_quota``.

    Windows of ten minutes of event time, counted per Kafka partition. ``sender`` is set; the shared quotas of a
    channel, a content topic, a ``pattern`` (all content topics together that one entry of ``channels.content_topics``
    with a wildcard matches) and a pubsub topic hold 4, 10, 20 and 30 such senders. A shared quota cannot be used up for
    moderate senders: above it only senders with more than an equal share are refused, and all from twice the quota on.
    The defaults are far above honest traffic; if the network has a rate limit, set them much tighter."""

    window_ms: PositiveMilliseconds = 600_000
    sender: Quota = Quota()
    channel: Quota = Field(default_factory=_make_default("channel"))
    content_topic: Quota = Field(default_factory=_make_default("content_topic"))
    pattern: Quota = Field(default_factory=_make_default("pattern"))
    pubsub_topic: Quota = Field(default_factory=_make_default("pubsub_topic"))
