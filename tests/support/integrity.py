"""The integrity oracle: the simulation plays a scenario and knows the truth; the pipeline's adapters write the rows."""

from __future__ import annotations

from reliable_channel.core.sds import SdsParameters
from reliable_channel.simulation.check.promises import check
from reliable_channel.simulation.scenario import ChannelPlan, HostilePlan, LinkQuality, Scenario, SizeMix
from reliable_channel.simulation.world import simulate
from tests.support.adapters import Adapters

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
ELSEWHERE = ("quarantine", "incomplete messages")
"""The promises that are kept by tables which these adapters do not fill alone."""


def attack_scenario(
    seed: int,
    attacks: tuple[str, ...] = (),
    senders: int = 1,
    per_envelope: float = 0.5,
    loss: float = 0.0,
    heard: bool = True,
    messages: int = 12,
    parity_rate: float | None = 0.5,
) -> Scenario:
    """One channel of three honest participants under attack, for two virtual minutes."""
    hostile = HostilePlan(
        senders=tuple(f"mallory-{number}" for number in range(senders)),
        per_envelope=per_envelope,
        attacks=attacks,
        heard_by_participants=heard,
    )
    plan = ChannelPlan(
        channel_id="talk",
        content_topic="/reliable-channel/1/chat/proto",
        participants=("alice", "bob", "carol"),
        messages=messages,
        duration_ms=2 * MINUTE_MS,
        segment_size=256,
        parity_rate=parity_rate,
        sizes=SizeMix(short=0.5, medium=0.1, large=0.4, max_segments=4),
        between=LinkQuality(loss=loss),
        to_observer=LinkQuality(loss=loss, duplicate=loss, reorder=loss),
        ephemeral=0.1,
        hostile=hostile,
    )
    return Scenario(seed=seed, channels=(plan,), drain_ms=90_000)


def find_differences(scenario: Scenario, sds: SdsParameters) -> list[str]:
    """What differs from the truth in the rows of a scenario."""
    world = simulate(scenario)
    adapters = Adapters(sds=sds)
    for offset, record in enumerate(world.records):
        if record.value is not None:
            adapters.record(offset, record.value, dict(record.headers), record.at_ms)
    observed = adapters.close(scenario.end_ms + HOUR_MS)
    for rows in (observed.messages, observed.segments, observed.acks, observed.lost):
        rows.reverse()  # tables are read in the order of their files
    return [str(each) for each in check(world.truth, observed) if each.promise not in ELSEWHERE]
