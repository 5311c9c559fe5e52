"""Sets of slow senders through decode, reassembly and ack in plain Python: a message is never dropped while its sender
may still complete it, and every row that calls one incomplete is explained by what follows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reliable_channel.pipeline.reassembly.already_reported import drop_covered
from reliable_channel.simulation.check.observed import IncompleteMessage
from reliable_channel.simulation.check.promises import check
from reliable_channel.simulation.presets import slow_scenario
from reliable_channel.simulation.scenario import ChannelPlan, EpochLimit, LinkQuality, Nap, Scenario, SizeMix
from reliable_channel.simulation.truth import TrueMessage
from reliable_channel.simulation.world import World, simulate
from tests.support.adapters import Adapters
from tests.support.examples import examples

MINUTE_MS = 60_000
LIFETIME_MS = 60 * MINUTE_MS


@st.composite
def slow_conversations(draw: st.DrawFn) -> Scenario:
    """A few messages of several segments by senders who are away in between, or have a rate limit by epochs."""
    minutes = st.integers(0, 10)
    naps = tuple(
        Nap(name, begin * MINUTE_MS, (begin + draw(st.integers(1, 12))) * MINUTE_MS)
        for name in ("alice", "bob")
        for begin in draw(st.lists(minutes, max_size=2))
    )
    limit = draw(st.none() | st.builds(EpochLimit, st.integers(1, 4), st.just(10 * MINUTE_MS)))
    plan = ChannelPlan(
        channel_id="talk",
        content_topic="/reliable-channel/1/talk/proto",
        participants=("alice", "bob"),
        messages=draw(st.integers(1, 4)),
        duration_ms=draw(st.integers(1, 10)) * MINUTE_MS,
        sizes=SizeMix(short=0.2, medium=0.0, large=0.8, max_segments=4),
        parity_rate=draw(st.sampled_from([None, 0.5])),
        between=LinkQuality(loss=draw(st.sampled_from([0.0, 0.2]))),
        to_observer=LinkQuality(loss=draw(st.sampled_from([0.0, 0.3, 0.5]))),
        sleeps=naps,
        rate_limit=limit,
        repeats=0.0,
    )
    return Scenario(seed=draw(st.integers(0, 10**6)), channels=(plan,), drain_ms=draw(st.integers(2, 40)) * MINUTE_MS)


def observed(world: World, ticks: bool = False) -> Adapters:
    adapters = Adapters()
    for offset, record in enumerate(world.records):
        if record.value is not None:
            adapters.record(offset, record.value, dict(record.headers), record.at_ms)
            if ticks:
                adapters.tick(offset, record.at_ms)
    adapters.close(world.scenario.end_ms + LIFETIME_MS)
    return adapters


def reported(adapters: Adapters) -> list[Mapping[str, Any]]:
    """The rows of ``incomplete_messages``, as the driver writes them."""
    return drop_covered([each.fields for each in adapters.given_up], [each._asdict() for each in adapters.rebuilt])


def of(adapters: Adapters, message: TrueMessage, status: str) -> list[Mapping[str, Any]]:
    """The reports on the sets of a message."""
    found = (row for row in reported(adapters) if row["status"] == status)
    mine = (message.channel_id, message.sender, message.announced_keccak)
    return [row for row in found if (row["channel_id"], row["sender_id"], row["entire_message_hash"].hex()) == mine]


def differences(world: World, adapters: Adapters) -> list[str]:
    """What the tables say against the truth, with the sets that were given up."""
    tables = adapters.tables
    tables.incomplete[:] = [
        IncompleteMessage(
            row["channel_id"],
            row["sender_id"],
            row["entire_message_hash"].hex(),
            tuple(row["data_missing"] or ()),
            row["data_count"],
        )
        for row in reported(adapters)
        if row["status"] == "given_up"
    ]
    return [str(each) for each in check(world.truth, tables) if each.promise not in ("quarantine", "lost dependencies")]


@settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(slow_conversations())
def test_no_message_is_dropped_while_its_sender_may_complete_it_and_every_incomplete_row_is_explained(
    scenario: Scenario,
) -> None:
    world = simulate(scenario)
    adapters = observed(world)
    assert differences(world, adapters) == []
    rebuilt = {each.entire_message_hash.hex(): each for each in adapters.rebuilt}
    for message in world.truth.messages:
        overdue, given_up = of(adapters, message, "overdue"), of(adapters, message, "given_up")
        complete = rebuilt.get(message.announced_keccak)
        assert len(given_up) <= 1, "a set is given up once"
        assert not (complete and given_up), "what is given up is not completed"
        for row in overdue:
            assert complete or given_up, "an overdue set is completed or given up in the end"
            end = complete.event_time if complete else given_up[0]["event_time"]
            assert row["event_time"] <= end
        acknowledged = Counter(a.by for a in adapters.tables.acks if a.sds_id in _ids(world, message))
        by_all = all(acknowledged[name] >= message.data_count for name in ("alice", "bob") if name != message.sender)
        if by_all and (overdue or given_up):
            assert (
                complete or given_up[0]["data_missing"] is None or given_up[0]["data_missing"] == message.missing_data
            )


def _ids(world: World, message: TrueMessage) -> set[str]:
    return {s.sds_id for s in world.truth.segments if (s.channel_id, s.message) == (message.channel_id, message.number)}


@settings(
    max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(slow_conversations())
def test_a_tick_after_every_record_changes_nothing(scenario: Scenario) -> None:
    world = simulate(scenario)
    once, often = observed(world), observed(world, ticks=True)
    assert sorted(often.outputs) == sorted(once.outputs)
    assert sorted(map(repr, often.given_up)) == sorted(map(repr, once.given_up))


@pytest.mark.parametrize("seed", [7, 1, 2])
def test_slow_senders_of_the_demo_deliver_late(seed: int) -> None:
    world = simulate(slow_scenario(seed))
    adapters = observed(world)
    assert differences(world, adapters) == []
    whole = {each.entire_message_hash for each in adapters.rebuilt}
    late = {row["entire_message_hash"] for row in reported(adapters) if row["status"] == "overdue"} & whole
    assert late, "the scenario has messages that are completed after they were overdue"
