"""How much of the pipeline one sender, one channel and one content topic may take (docs/quarantine.md *Quotas*)."""

from __future__ import annotations

from reliable_channel.config.section import Bytes, Count, PositiveMilliseconds, Section


class Quota(Section):
    """What may pass in one window: SDS messages, bytes of their content, segments (each opens at most one set), and ids
    that histories and repair requests name (each goes missing, and is fetched, at most once)."""

    messages: Count
    bytes: Bytes
    segments: Count
    named_ids: Count


class QuotaSettings(Section):
    """Checked in ingest, before anything reaches keyed state; what is above is quarantined as ``over_quota``.

    Windows of ``window_ms`` of event time, counted per Kafka partition. The defaults are far above what honest traffic
    needs; a network with a rate limit can be held much tighter."""

    window_ms: PositiveMilliseconds = 600_000
    sender: Quota = Quota(messages=100_000, bytes=2**30, segments=50_000, named_ids=5_000_000)
    channel: Quota = Quota(messages=400_000, bytes=4 * 2**30, segments=200_000, named_ids=20_000_000)
    content_topic: Quota = Quota(messages=1_000_000, bytes=8 * 2**30, segments=500_000, named_ids=50_000_000)
