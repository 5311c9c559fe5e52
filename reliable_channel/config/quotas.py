"""Configures the quotas of one sender, channel and content topic, and of all together (docs/quarantine.md,
*Quotas*)."""

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
    """Checked in ingest, before rows reach keyed state; messages above a quota are quarantined as ``over_quota``.

    Windows of ``window_ms`` of event time, counted per Kafka partition. ``pattern`` bounds all content topics together
    that one entry of ``channels.content_topics`` with a wildcard matches, ``pubsub_topic`` all of a pubsub topic. A
    shared quota cannot be used up for moderate senders: above it only senders with more than an equal share are
    refused, and all from twice the quota on. The defaults are far above honest traffic; if the network has a rate
    limit, set them much tighter."""

    window_ms: PositiveMilliseconds = 600_000
    sender: Quota = Quota(messages=100_000, bytes=2**30, segments=50_000, named_ids=5_000_000)
    channel: Quota = Quota(messages=400_000, bytes=4 * 2**30, segments=200_000, named_ids=20_000_000)
    content_topic: Quota = Quota(messages=1_000_000, bytes=8 * 2**30, segments=500_000, named_ids=50_000_000)
    pattern: Quota = Quota(messages=2_000_000, bytes=12 * 2**30, segments=1_000_000, named_ids=75_000_000)
    pubsub_topic: Quota = Quota(messages=3_000_000, bytes=16 * 2**30, segments=1_500_000, named_ids=100_000_000)
