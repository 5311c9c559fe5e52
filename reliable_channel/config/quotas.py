"""Configures how much one sender, channel or content topic, and all together, may use of the pipeline
(docs/quarantine.md, *Quotas*)."""

from __future__ import annotations

from reliable_channel.config.section import Bytes, Count, PositiveMilliseconds, Section


class Quota(Section):
    """The limits of one window: SDS messages, bytes of their content, ids and hints, segments (each opens at most one
    set), and ids that histories and repair requests name (each becomes missing, and is fetched, at most once)."""

    messages: Count
    bytes: Bytes
    segments: Count
    named_ids: Count


class QuotaSettings(Section):
    """Checked in ingest, before anything reaches keyed state; what is above is quarantined as ``over_quota``.

    Windows of ``window_ms`` of event time, counted per Kafka partition. ``pattern`` bounds all content topics together
    that one entry of ``channels.content_topics`` with a wildcard matches, ``pubsub_topic`` all of a pubsub topic. What
    several share is never used up for the modest: above it only those are refused who have more than an equal share,
    and all from twice the quota on. The defaults are far above what honest traffic needs; a network with a rate limit
    can be held much tighter."""

    window_ms: PositiveMilliseconds = 600_000
    sender: Quota = Quota(messages=100_000, bytes=2**30, segments=50_000, named_ids=5_000_000)
    channel: Quota = Quota(messages=400_000, bytes=4 * 2**30, segments=200_000, named_ids=20_000_000)
    content_topic: Quota = Quota(messages=1_000_000, bytes=8 * 2**30, segments=500_000, named_ids=50_000_000)
    pattern: Quota = Quota(messages=2_000_000, bytes=12 * 2**30, segments=1_000_000, named_ids=75_000_000)
    pubsub_topic: Quota = Quota(messages=3_000_000, bytes=16 * 2**30, segments=1_500_000, named_ids=100_000_000)
