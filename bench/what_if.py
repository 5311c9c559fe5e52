"""Measures a prediction of ``reliable-channel what-if``: a conversation of 300 messages and four participants."""

from __future__ import annotations

from collections.abc import Iterator

from bench.registry import SIZES, Result, bench, cpu_of
from reliable_channel.simulation.scenario import START_MS, Send
from reliable_channel.simulation.what_if.prediction import WhatIf, predict
from reliable_channel.simulation.what_if.recording import Recording

MESSAGES, EVERY_MS = 300, 6_000
WHO = ("alice", "bob", "carol", "dave")


@bench
def what_if() -> Iterator[Result]:
    """Measure simulations with and without loss: CPU seconds of one core."""
    count = SIZES.scale_count(MESSAGES, 20)
    sends = tuple(Send(WHO[n % len(WHO)], n * EVERY_MS, 100 if n % 5 else 2_000) for n in range(count))
    recording = Recording(
        channel_id="bench",
        content_topic="/bench/1/what-if/proto",
        participants=WHO,
        sends=sends,
        start_ms=START_MS,
        duration_ms=count * EVERY_MS,
        joins_at=(),
        losses={(a, b): 0.1 for a in WHO for b in WHO if a != b},
        repeats=0.5,
        observer_loss=0.0,
        delay_ms=100,
        parity=0.0,
        history=2,
        segment_size=512,
    )
    settings = WhatIf(segment_size=512)
    calm = cpu_of(lambda: predict(recording.scale(0), settings, [1]))
    lossy = cpu_of(lambda: predict(recording, settings, [1]))
    yield Result(f"a simulation of {count} messages, no loss", calm, "s")
    yield Result(f"a simulation of {count} messages, 10 % loss", lossy, "s")
    yield Result("10 % loss / no loss", lossy / calm, "ratio", 4.0, True, "no loss")
