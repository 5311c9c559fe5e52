"""The adapters of the pipeline (``HashSets``, ``ChannelObserver``), fed record by record without Spark, write what is
true of a simulated conversation. What Spark adds (cuts, state, tables) has tests of its own."""

from __future__ import annotations

import json

import pytest

from reliable_channel.pipeline.reassembly.already_reported import drop_covered, list_arrivals
from reliable_channel.simulation.check.promises import check
from reliable_channel.simulation.presets import demo_scenario, small_scenario
from reliable_channel.simulation.scenario import Scenario
from reliable_channel.simulation.world import simulate
from tests.support.adapters import Adapters

HOUR_MS = 3_600_000
"""The promises that are kept by tables which these adapters do not fill alone."""
ELSEWHERE = ("quarantine", "incomplete messages", "lost dependencies")


def differences(scenario: Scenario) -> list[str]:
    world = simulate(scenario)
    adapters = Adapters()
    for offset, record in enumerate(world.records):
        if record.value is not None:
            adapters.record(offset, record.value, dict(record.headers), record.at_ms)
    found = check(world.truth, adapters.close(scenario.end_ms + HOUR_MS))
    return [str(difference) for difference in found if difference.promise not in ELSEWHERE]


@pytest.mark.parametrize("seed", [2, 3])
def test_ticks_between_records_change_nothing(seed: int) -> None:
    """A tick stands where a micro-batch ended: whatever fires at one would have fired, with the same time, later."""
    world = simulate(small_scenario(seed))
    often, once = Adapters(), Adapters()
    for offset, record in enumerate(world.records):
        if record.value is not None:
            for adapters in (often, once):
                adapters.record(offset, record.value, dict(record.headers), record.at_ms)
            often.tick(offset, record.at_ms)
    for minute in range(60):
        often.tick(1 << 39, world.scenario.end_ms + minute * 60_000)
    for adapters in (often, once):
        adapters.close(world.scenario.end_ms + HOUR_MS)
    # Channels are apart; within one, rows come in the same order with the same values.
    assert sorted(often.outputs) == sorted(once.outputs)


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_short_conversation(seed: int) -> None:
    assert differences(small_scenario(seed)) == []


@pytest.mark.parametrize("seed", [1, 9])
def test_the_demo_conversation(seed: int) -> None:
    """The seeds hold messages that a later one would overtake if its set were known to be whole too late."""
    assert differences(demo_scenario(seed)) == []


@pytest.mark.parametrize(("hours", "lost_every"), [(26, 0), (26, 3), (240, 0), (240, 2)])
def test_a_store_replay_a_day_or_ten_later_delivers_nothing_twice(hours: int, lost_every: int) -> None:
    """After ten days the channels are dormant: only their positions are left. What a replay brings in part opens sets,
    which expire and hold nothing but what had come with messages that were rebuilt: they are no *incomplete
    messages*."""
    world = simulate(small_scenario(4))
    adapters = Adapters(expiry_ms=7 * 24 * HOUR_MS)
    for offset, record in enumerate(world.records):
        if record.value is not None:
            adapters.record(offset, record.value, dict(record.headers), record.at_ms)
    adapters.tick(len(world.records), world.scenario.end_ms + HOUR_MS)
    before = [output for output in adapters.outputs if output[0] == "deliveries"]
    missing = {result.fields["entire_message_hash"] for result in adapters.given_up}
    assert before

    for offset, record in enumerate(world.records):
        if record.value is not None and (not lost_every or offset % lost_every):
            headers = {**dict(record.headers), "source": b"store"}
            adapters.record(10_000 + offset, record.value, headers, record.at_ms + hours * HOUR_MS)
    adapters.close(world.scenario.end_ms + (hours + 1) * HOUR_MS)
    adapters.tick(
        1 << 41, world.scenario.end_ms + (hours + 30 * 24) * HOUR_MS
    )  # a channel that becomes dormant reports what waits
    assert [output for output in adapters.outputs if output[0] == "deliveries" and not _ephemeral(output[1])] == [
        output for output in before if not _ephemeral(output[1])
    ]
    arrivals = list_arrivals(adapters.segments)
    reports = drop_covered([r.fields for r in adapters.given_up], [r._asdict() for r in adapters.rebuilt], arrivals)
    assert {report["entire_message_hash"] for report in reports} <= missing
    dropped = [output for output in adapters.outputs if "pending_message_dropped" in output[1]]
    assert not dropped, "nothing waits for what was delivered long ago"


def _ephemeral(fields: str) -> bool:
    """Stores never keep ephemeral messages, so none comes back."""
    return json.loads(fields)["sds_kind"] == "ephemeral"
