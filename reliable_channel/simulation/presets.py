"""Builds ready scenarios: the demo's, and one from the options of ``reliable-channel simulate``."""

from __future__ import annotations

from dataclasses import replace

from reliable_channel.simulation.network import OBSERVER
from reliable_channel.simulation.scenario import (
    ChannelPlan,
    EpochLimit,
    Fault,
    GilbertElliott,
    HostilePlan,
    LinkQuality,
    Nap,
    Partition,
    Scenario,
    SizeMix,
    StorePlan,
)

MINUTE_MS = 60_000
_NAMES = ("alice", "bob", "carol", "dave", "erin", "frank", "grace", "heidi")


def demo_scenario(seed: int = 7) -> Scenario:
    """Five channels on four content topics, ten virtual minutes, each with different faults."""
    lossy = LinkQuality(loss=0.02, duplicate=0.03, reorder=0.05)
    bursts = GilbertElliott(good_to_bad=0.08, bad_to_good=0.2)
    ten = 10 * MINUTE_MS
    return Scenario(
        seed=seed,
        bad_input=36,
        plain_waku=20,
        stores=(
            # Two that disagree: one loses at random and is off for a while, the other loses in bursts.
            StorePlan("north", LinkQuality(loss=0.5), off_ms=3 * MINUTE_MS, off_for_ms=4 * MINUTE_MS),
            StorePlan("south", LinkQuality(loss=0.55, burst=bursts)),
        ),
        vantages=(("east", 0.9), ("west", 0.75)),
        channels=(
            # Short talk; the observer loses one in five. Two channels share its content topic.
            ChannelPlan(
                channel_id="talk",
                content_topic="/reliable-channel/1/chat/proto",
                participants=("alice", "bob", "carol"),
                messages=120,
                duration_ms=ten,
                sizes=SizeMix(short=0.95, medium=0.05, large=0.0),
                between=lossy,
                to_observer=LinkQuality(loss=0.2, duplicate=0.05, reorder=0.05),
                ephemeral=0.1,
            ),
            # The same topic in bursts, and somebody who comes late.
            ChannelPlan(
                channel_id="ops",
                content_topic="/reliable-channel/1/chat/proto",
                participants=("dave", "erin", "frank"),
                messages=80,
                duration_ms=ten,
                sizes=SizeMix(short=0.8, medium=0.1, large=0.1, max_segments=4),
                between=lossy,
                to_observer=LinkQuality(burst=bursts, duplicate=0.02, reorder=0.03),
                joins_at=(("frank", 3 * MINUTE_MS),),
            ),
            # Files with parity, over a link that loses one envelope in five.
            ChannelPlan(
                channel_id="files",
                content_topic="/reliable-channel/1/files/proto",
                participants=("alice", "bob"),
                messages=50,
                duration_ms=ten,
                parity_rate=0.25,
                sizes=SizeMix(short=0.2, medium=0.1, large=0.7, max_segments=12),
                between=LinkQuality(loss=0.02),
                to_observer=LinkQuality(loss=0.2, duplicate=0.02, reorder=0.1),
                repeats=0.15,
                faults=((12, Fault.PARITY_SAVES), (20, Fault.SEGMENT_MISSING)),
            ),
            # Full-size segments: the default of 100 KiB each.
            ChannelPlan(
                channel_id="video",
                content_topic="/reliable-channel/1/video/proto",
                participants=("grace", "heidi"),
                messages=8,
                duration_ms=ten,
                segment_size=102_400,
                parity_rate=0.125,
                sizes=SizeMix(short=0.25, medium=0.0, large=0.75, max_segments=9),
                to_observer=LinkQuality(loss=0.1),
            ),
            # The network falls apart for two minutes, and one of each injected fault.
            ChannelPlan(
                channel_id="field",
                content_topic="/reliable-channel/1/field/proto",
                participants=("carol", "dave", "heidi", "frank"),
                messages=80,
                duration_ms=ten,
                sizes=SizeMix(short=0.7, medium=0.1, large=0.2, max_segments=5),
                between=LinkQuality(loss=0.05, reorder=0.1),
                to_observer=LinkQuality(loss=0.03, burst=bursts, reorder=0.1, duplicate=0.05),
                partitions=(Partition(3 * MINUTE_MS, 5 * MINUTE_MS, frozenset({"carol", "dave", OBSERVER})),),
                faults=(
                    (10, Fault.NEVER_SENT),
                    (20, Fault.NOT_STORED),
                    (30, Fault.UNDECODABLE),
                    (40, Fault.RATE_LIMITED),
                ),
            ),
        ),
    )


def small_scenario(seed: int = 1) -> Scenario:
    """Two short channels of two virtual minutes: for tests that start whole processes."""
    demo = demo_scenario(seed)
    keep = [c for c in demo.channels if c.channel_id in ("ops", "files")]
    channels = tuple(
        replace(c, messages=16, duration_ms=2 * MINUTE_MS, joins_at=(), faults=((5, Fault.SEGMENT_MISSING),))
        for c in keep
    )
    return replace(demo, channels=channels, drain_ms=90_000, bad_input=12, plain_waku=4)


def hostile_scenario(seed: int = 7) -> Scenario:
    """The two channels of the small scenario with three hostile senders on each, who try every attack. They begin when
    the observer has seen the channel, because the first message seen decides since when it is observed."""
    small = small_scenario(seed)
    hostile = HostilePlan(senders=("mallory", "eve", "trudy"), per_envelope=0.6, begins_after=4)
    return replace(small, channels=tuple(replace(plan, messages=24, hostile=hostile) for plan in small.channels))


def slow_scenario(seed: int = 7) -> Scenario:
    """Senders who take long to complete a message: on one channel they are away for seven minutes in the middle of it,
    on the others a rate limit spreads its segments over epochs of ten minutes, with and without parity. The observer
    loses segments, so sets are overdue here; some are completed late, and some never."""
    many = SizeMix(short=0.3, medium=0.1, large=0.6, max_segments=5)
    away = ChannelPlan(
        channel_id="away",
        content_topic="/reliable-channel/1/away/proto",
        participants=("alice", "bob", "carol"),
        messages=30,
        duration_ms=14 * MINUTE_MS,
        sizes=many,
        between=LinkQuality(loss=0.1),
        to_observer=LinkQuality(loss=0.3),
        sleeps=(
            Nap("alice", 2 * MINUTE_MS, 9 * MINUTE_MS),
            Nap("bob", 4 * MINUTE_MS, 11 * MINUTE_MS),
            Nap("carol", 8 * MINUTE_MS, 15 * MINUTE_MS),
        ),
        faults=((5, Fault.SEGMENT_MISSING),),
    )
    epochs = replace(
        away,
        channel_id="epochs",
        content_topic="/reliable-channel/1/epochs/proto",
        participants=("dave", "erin"),
        messages=8,
        duration_ms=5 * MINUTE_MS,
        between=LinkQuality(loss=0.05),
        to_observer=LinkQuality(loss=0.15),
        sleeps=(),
        faults=((3, Fault.SEGMENT_MISSING),),
        rate_limit=EpochLimit(3, 10 * MINUTE_MS),
    )
    parity = replace(epochs, channel_id="parity", participants=("frank", "grace"), parity_rate=0.5)
    stores = (StorePlan("north", LinkQuality(loss=0.3)),)
    return Scenario(seed=seed, channels=(away, epochs, parity), drain_ms=100 * MINUTE_MS, stores=stores)


def bad_day_scenario(seed: int = 7) -> Scenario:
    """An hour in which three things go wrong: two of five participants are cut off from the others for twelve minutes,
    the only store keeps nothing for a quarter of an hour, and somebody floods a channel with messages that refer to
    ones that never existed."""
    hour = 60 * MINUTE_MS
    ops = ChannelPlan(
        channel_id="ops",
        content_topic="/reliable-channel/1/ops/proto",
        participants=("alice", "bob", "carol", "dave", "erin"),
        messages=300,
        duration_ms=hour,
        sizes=SizeMix(short=0.9, medium=0.1, large=0.0),
        between=LinkQuality(loss=0.02),
        to_observer=LinkQuality(loss=0.02),
        partitions=(Partition(12 * MINUTE_MS, 24 * MINUTE_MS, frozenset({"carol", "dave"}), is_observed=True),),
    )
    field = replace(
        ops,
        channel_id="field",
        content_topic="/reliable-channel/1/field/proto",
        participants=("frank", "grace", "heidi"),
        messages=240,
        to_observer=LinkQuality(loss=0.4),
        partitions=(),
    )
    market = replace(
        field,
        channel_id="market",
        content_topic="/reliable-channel/1/market/proto",
        messages=120,
        to_observer=LinkQuality(loss=0.02),
        hostile=HostilePlan(per_envelope=0.03, attacks=("flood",), begins_after=200, flood=100),
    )
    stores = (StorePlan("north", LinkQuality(loss=0.05), off_ms=30 * MINUTE_MS, off_for_ms=15 * MINUTE_MS),)
    return Scenario(seed=seed, channels=(ops, field, market), stores=stores)


def custom_scenario(
    seed: int,
    messages: int,
    participants: int,
    channels: int,
    topics: int,
    loss: float,
    duration_ms: int,
    parity_rate: float | None,
    segment_size: int,
    bad_share: float,
    bursty: bool = False,
) -> Scenario:
    """``messages`` in all, spread over ``channels`` on ``topics`` content topics; every link loses ``loss``."""
    names = tuple(_NAMES[i] if i < len(_NAMES) else f"peer-{i}" for i in range(participants))
    burst = GilbertElliott() if bursty else None
    link = LinkQuality(loss=loss, burst=burst, duplicate=loss / 2, reorder=loss / 2)
    plans = tuple(
        ChannelPlan(
            channel_id=f"channel-{number}",
            content_topic=f"/reliable-channel/1/topic-{number % topics}/proto",
            participants=names,
            messages=messages // channels + (1 if number < messages % channels else 0),
            duration_ms=duration_ms,
            segment_size=segment_size,
            parity_rate=parity_rate,
            between=link,
            to_observer=link,
        )
        for number in range(channels)
    )
    return Scenario(seed=seed, channels=plans, bad_input=round(bad_share * messages))
