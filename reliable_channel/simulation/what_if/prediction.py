"""Predicts what recorded traffic would have become under other settings: the senders' messages as they were, over links
that lose as many envelopes as the records show, in virtual time.

The records show which messages a participant lacked when it made its own next one: its Bloom filter does not contain
them. That gives each link's share of the losses. Messages that are lost are sent again before the filter of a later
message can show it, so the shares are too small by a common factor: the simulation of the settings that were in use
is repeated until it has as many repeats per segment as the records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, quantiles
from typing import Any

from reliable_channel.simulation.engine import play_channel
from reliable_channel.simulation.journal import ChannelJournal
from reliable_channel.simulation.scenario import PERFECT, ChannelPlan, EpochLimit, LinkQuality, Scenario
from reliable_channel.simulation.what_if.recording import Recording

DRAIN_MS = 600_000
"""How long the participants go on after the last message: the waits of all retransmissions add up to 315 s."""
MOST_LOSS = 0.95
_STEPS = 6


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The settings of one prediction. ``parity``: parity segments per data segment; times in ms, sizes in bytes.
    ``slots``: envelopes that a sender may send in an epoch of ``epoch_ms``; ``None`` without a rate limit."""

    parity: float = 0.0
    history: int = 2
    ack_timeout_ms: int = 5_000
    retransmissions: int = 5
    repair: bool = True
    segment_size: int = 102_400
    slots: int | None = None
    epoch_ms: int = 600_000

    def name_changes(self, base: WhatIf) -> str:
        """What differs from other settings, in words; empty if nothing does."""
        own, other = asdict(self), asdict(base)
        return ", ".join(f"{name} {_format_value(name, own[name])}" for name in own if own[name] != other[name])


@dataclass(frozen=True, slots=True)
class Performance:
    """What one simulation gave. ``delivered``: share of (message, other participant who was there) pairs; times to
    delivery in ms, to the participants that got the message; ``envelopes``, ``sent_bytes`` per message; ``slots``: the
    most envelopes that a sender dispatched in an epoch."""

    delivered: float
    p50_ms: float | None
    p95_ms: float | None
    envelopes: float
    sent_bytes: float
    slots: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """The means of the outcomes of several seeds, and the least and the most that was delivered."""

    settings: WhatIf
    mean: Performance
    least: float
    most: float


def fit_losses(recording: Recording, base: WhatIf, on_step: Callable[[], None] = lambda: None) -> Recording:
    """The recording with its losses multiplied so that a simulation of ``base`` repeats as many segments as were
    repeated. The repeats grow with the losses: the factor is found by bisection."""
    if not recording.repeats:
        return recording.scale(0.0)
    low, high = 0.0, 1.0
    while high < 64 and _count_repeats(recording.scale(high), base) < recording.repeats:
        low, high = high, high * 2
        on_step()
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if _count_repeats(recording.scale(middle), base) < recording.repeats:
            low = middle
        else:
            high = middle
        on_step()
    return recording.scale((low + high) / 2)


def predict(
    recording: Recording, settings: WhatIf, seeds: Sequence[int], on_run: Callable[[], None] = lambda: None
) -> Prediction:
    """What the recorded messages would have become under these settings, for each seed of the network's draws."""
    outcomes = []
    for seed in seeds:
        outcomes.append(measure(_play(recording, settings, seed, PERFECT), settings.epoch_ms))
        on_run()
    shares = [one.delivered for one in outcomes]
    return Prediction(settings, _average(outcomes), min(shares), max(shares))


def measure(journal: ChannelJournal, epoch_ms: int) -> Performance:
    """What became of the messages of a simulated channel whose observer receives every envelope."""
    pairs, waits = 0, []
    messages = [message for message in journal.messages.values() if not message.ephemeral]
    for message in messages:
        for name in journal.plan.participants:
            if name == message.sender or journal.joined[name] > message.sent_at_ms:
                continue
            pairs += 1
            times = sorted(
                journal.delivered[name, sds_id] for sds_id in message.sds_ids if (name, sds_id) in journal.delivered
            )
            if len(times) >= message.data_count:
                waits.append(times[message.data_count - 1] - message.sent_at_ms)
    slots = Counter((each.by, each.at_ms // epoch_ms) for each in journal.dispatches)
    points = quantiles(waits, n=20) if len(waits) > 1 else waits * 19  # of one value, every quantile is itself
    count = max(1, len(messages))
    return Performance(
        delivered=len(waits) / pairs if pairs else 1.0,
        p50_ms=points[9] if points else None,
        p95_ms=points[18] if points else None,
        envelopes=len(journal.dispatches) / count,
        sent_bytes=sum(len(record.value or b"") for record in journal.observed) / count,
        slots=max(slots.values(), default=0),
    )


def find_cheapest(predictions: Sequence[Prediction], target: float) -> Prediction | None:
    """The settings with the fewest bytes of those that deliver at least ``target`` for every seed."""
    enough = [each for each in predictions if each.least >= target]
    return min(enough, key=lambda each: each.mean.sent_bytes, default=None)


def _play(recording: Recording, settings: WhatIf, seed: int, to_observer: LinkQuality) -> ChannelJournal:
    limit = None if settings.slots is None else EpochLimit(settings.slots, settings.epoch_ms)
    delay = LinkQuality(delay_ms=recording.delay_ms, jitter_ms=recording.delay_ms)
    plan = ChannelPlan(
        channel_id=recording.channel_id,
        content_topic=recording.content_topic,
        participants=recording.participants,
        messages=len(recording.sends),
        duration_ms=recording.duration_ms,
        segment_size=settings.segment_size,
        parity_rate=settings.parity or None,
        between=delay,
        to_observer=to_observer,
        joins_at=recording.joins_at,
        rate_limit=limit,
        sends=recording.sends,
        links=tuple((a, b, replace(delay, loss=min(MOST_LOSS, p))) for (a, b), p in recording.losses.items()),
        sds=(
            ("causal_history_size", settings.history),
            ("acknowledgement_timeout_ms", settings.ack_timeout_ms),
            ("max_retransmissions", settings.retransmissions),
            ("repair", settings.repair),
            ("acknowledge_within_ms", recording.acknowledge_within_ms),
        ),
        family=recording.family,
    )
    return play_channel(plan, Scenario(seed, (plan,), start_ms=recording.start_ms, drain_ms=DRAIN_MS))


def _count_repeats(recording: Recording, base: WhatIf) -> float:
    """Repeats per segment of a simulation, as an observer sees them who loses as much as the one of the records."""
    # Always the same seed: with other draws, larger losses could give fewer repeats, and the bisection would go astray.
    journal = _play(recording, base, 0, replace(PERFECT, loss=recording.observer_loss))
    contents = {sds_id for sds_id, sds in journal.sds.items() if sds.message is not None}
    seen = Counter(record.sds_id for record in journal.observed if record.sds_id in contents)
    return sum(seen.values()) / len(seen) - 1 if seen else 0.0


def _average(outcomes: Sequence[Performance]) -> Performance:
    columns: Mapping[str, list[Any]] = {
        name: [value for one in outcomes if (value := getattr(one, name)) is not None]
        for name in Performance.__dataclass_fields__
    }
    means = {name: fmean(values) if values else None for name, values in columns.items()}
    return Performance(**{**means, "slots": max(columns["slots"])})


def _format_value(name: str, value: Any) -> str:
    if value is None:
        return "unlimited"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value / 1000:g} s" if name.endswith("_ms") else f"{value:g}"
