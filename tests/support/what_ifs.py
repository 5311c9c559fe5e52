"""A conversation, what its observer recorded of it, and how near predictions from that are to the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.simulation.engine import play_channel
from reliable_channel.simulation.scenario import (
    PERFECT,
    ChannelPlan,
    EpochLimit,
    LinkQuality,
    Scenario,
    SizeMix,
)
from reliable_channel.simulation.what_if.prediction import (
    DRAIN_MS,
    Performance,
    WhatIf,
    measure,
    predict,
)
from reliable_channel.simulation.what_if.recording import Recording, read_recording
from reliable_channel.simulation.world import simulate
from tests.support.simulated_tables import write_simulated

BASE = WhatIf(segment_size=512)
PLAN = ChannelPlan(
    channel_id="talk",
    content_topic="/reliable-channel/1/chat/proto",
    participants=("alice", "bob", "carol", "dave"),
    messages=80,
    duration_ms=8 * 60_000,
    segment_size=BASE.segment_size,
    sizes=SizeMix(short=0.6, medium=0.1, large=0.3, max_segments=5),
    between=LinkQuality(loss=0.15),
    to_observer=LinkQuality(loss=0.05),
    repeats=0.0,
    sds=(("acknowledge_within_ms", 800),),
)
KEY = ChannelFilter(PLAN.pubsub_topic, PLAN.content_topic, PLAN.channel_id)
OTHER = {
    "in use": {},
    "parity": {"parity": 0.25},
    "history": {"history": 10},
    "ack timeout": {"ack_timeout_ms": 20_000},
    "no repair": {"repair": False},
}


def record(folder: Path, plan: ChannelPlan, seed: int = 3) -> Recording:
    """What the observer of the conversation writes down, read from its tables."""
    return read_recording(write_simulated(folder, simulate(Scenario(seed=seed, channels=(plan,)))), KEY, 300)


def choose_seeds(settings: WhatIf) -> range:
    """Of how many simulations the means are compared. With repair, three differ as little as six. Without it the first
    loss that nobody mends in time holds up all that follows, and one conversation delivers twice as much as another."""
    return range(1, 4 if settings.repair else 11)


def play(plan: ChannelPlan, settings: WhatIf) -> list[Performance]:
    """The conversation itself under the settings, over its true links."""
    sds = (
        *plan.sds,
        ("causal_history_size", settings.history),
        ("acknowledgement_timeout_ms", settings.ack_timeout_ms),
        ("max_retransmissions", settings.retransmissions),
        ("repair", settings.repair),
    )
    limit = None if settings.slots is None else EpochLimit(settings.slots, settings.epoch_ms)
    changed = replace(plan, parity_rate=settings.parity or None, to_observer=PERFECT, sds=sds, rate_limit=limit)
    scenarios = [Scenario(seed + 10, (changed,), drain_ms=DRAIN_MS) for seed in choose_seeds(settings)]
    return [measure(play_channel(changed, one), settings.epoch_ms) for one in scenarios]


def mean(outcomes: list[Performance], name: str) -> float:
    return fmean(getattr(one, name) for one in outcomes)


def compare(recording: Recording, plan: ChannelPlan, settings: WhatIf, delivered: float, p95: float | None) -> None:
    predicted, true = predict(recording, settings, choose_seeds(settings)).mean, play(plan, settings)
    assert abs(predicted.delivered - mean(true, "delivered")) <= delivered
    assert predicted.envelopes / mean(true, "envelopes") == pytest.approx(1, abs=0.15)
    assert predicted.sent_bytes / mean(true, "sent_bytes") == pytest.approx(1, abs=0.2)
    assert predicted.p95_ms is not None
    if p95 is not None:
        assert predicted.p95_ms / mean(true, "p95_ms") == pytest.approx(1, abs=p95)
