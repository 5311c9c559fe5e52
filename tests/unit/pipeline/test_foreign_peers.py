"""Conversations with participants that behave like js-waku and nim-sds: the adapters write what is true of them, and
our participants and theirs agree on what everybody has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from reliable_channel.config import ChannelsSettings, ChannelTopic, load
from reliable_channel.core.wire.sds import WireFamily
from reliable_channel.pipeline.ingest.decode import RecordDecoder
from reliable_channel.simulation.check.promises import check
from reliable_channel.simulation.scenario import ChannelPlan, HostilePlan, LinkQuality, Scenario, SizeMix
from reliable_channel.simulation.world import World, simulate
from tests.support.adapters import Adapters
from tests.support.js_waku_sds import JsWakuSds
from tests.support.nim_sds import NimSds

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
TOPIC = "/reliable-channel/1/chat/proto"
JS, NIM = JsWakuSds, NimSds
ELSEWHERE = ("quarantine", "incomplete messages", "lost dependencies")
"""The promises that are kept by tables which these adapters do not fill alone."""


def conversation(seed: int, kinds: dict[str, type], loss: float) -> Scenario:
    """Three participants talk for three virtual minutes; ``kinds`` are those that are not ours."""
    plan = ChannelPlan(
        channel_id="talk",
        content_topic=TOPIC,
        participants=("alice", "bob", "carol"),
        messages=20,
        duration_ms=3 * MINUTE_MS,
        segment_size=256,
        sizes=SizeMix(short=0.7, medium=0.1, large=0.2, max_segments=3),
        between=LinkQuality(loss=loss, reorder=loss),
        to_observer=LinkQuality(loss=loss, reorder=loss, duplicate=loss),
        repeats=0.0,
        family=WireFamily.NIM if NIM in kinds.values() else WireFamily.SPEC,
        foreign=tuple(kinds.items()),
    )
    return Scenario(seed=seed, channels=(plan,), drain_ms=3 * MINUTE_MS)


def written(world: World, family: str = "auto") -> Adapters:
    """The adapters after all records of the world, and an hour."""
    topic = ChannelTopic(content_topic=TOPIC, family=family)
    settings = load("local").model_copy(update={"channels": ChannelsSettings(content_topics=(topic,))})
    adapters = Adapters(decoder=RecordDecoder(settings.channels))
    for offset, record in enumerate(world.records):
        if record.value is not None:
            adapters.record(offset, record.value, dict(record.headers), record.at_ms)
    adapters.close(world.scenario.end_ms + HOUR_MS)
    return adapters


def differences(world: World) -> list[str]:
    """What the adapters' tables say that is not true."""
    found = check(world.truth, written(world).tables)
    return [str(difference) for difference in found if difference.promise not in ELSEWHERE]


MIXES = {
    "ours and js-waku": {"bob": JS},
    "js-waku alone": {"alice": JS, "bob": JS, "carol": JS},
    "ours and nim-sds": {"bob": NIM},
    "nim-sds alone": {"alice": NIM, "bob": NIM, "carol": NIM},
}


@pytest.mark.parametrize("loss", [0.0, 0.15])
@pytest.mark.parametrize("mix", list(MIXES))
def test_the_tables_are_true_of_foreign_participants(mix: str, loss: float) -> None:
    for seed in range(2):
        assert differences(simulate(conversation(seed, MIXES[mix], loss))) == []


@pytest.mark.parametrize("loss", [0.0, 0.15])
def test_two_families_in_one_channel_give_the_rows_that_each_gives_alone(loss: float) -> None:
    """The same participants send the same payloads in both."""
    for seed in range(2):
        of_families = (conversation(seed, {"bob": kind}, loss) for kind in (JS, NIM))
        channels = tuple(plan for scenario in of_families for plan in scenario.channels)
        world = simulate(Scenario(seed=seed, channels=channels, drain_ms=3 * MINUTE_MS))
        mixed, *alone = (written(world, family) for family in ("auto", *WireFamily))
        assert Counter(mixed.outputs) == Counter(output for each in alone for output in each.outputs)
        assert Counter(map(repr, mixed.rebuilt)) == Counter(repr(row) for each in alone for row in each.rebuilt)
        assert Counter(map(repr, mixed.given_up)) == Counter(repr(row) for each in alone for row in each.given_up)
        assert all(each.tables.messages and each.tables.acks for each in alone)


@pytest.mark.parametrize("mix", ["ours and js-waku", "ours and nim-sds"])
def test_ours_and_theirs_hear_each_other_and_ours_are_acknowledged(mix: str) -> None:
    for seed in range(2):
        world = simulate(conversation(seed, MIXES[mix], 0.0))
        (journal,) = world.journals
        ours = [m for m in journal.messages.values() if m.sender not in MIXES[mix]]
        assert ours
        assert all(m.number in journal.confirmed for m in ours)
        everybody = set(journal.plan.participants)
        for message in journal.messages.values():
            for sds_id in message.sds_ids:
                assert all((name, sds_id) in journal.heard for name in everybody)


@pytest.mark.parametrize("mix", list(MIXES))
def test_nothing_is_missing_where_nothing_is_lost(mix: str) -> None:
    world = simulate(conversation(0, MIXES[mix], 0.0))
    tables = {table for table, _ in written(world).outputs}
    assert not tables & {"lost_dependencies", "refetch_requests"}


@pytest.mark.parametrize("loss", [0.0, 0.15])
@pytest.mark.parametrize("theirs", [(), ("bob",), ("bob", "carol")], ids=["ours", "one of theirs", "two of theirs"])
def test_who_pushes_the_clock_of_nim_sds_away_makes_nobody_lose_a_message(theirs: tuple[str, ...], loss: float) -> None:
    """nim-sds peers follow any timestamp, so honest messages are dated far ahead too."""
    for seed in range(2):
        usual = conversation(seed, dict.fromkeys(theirs, NIM), loss)
        plan = replace(usual.channels[0], family=WireFamily.NIM, hostile=HostilePlan(attacks=("lamport_rider",)))
        world = simulate(replace(usual, channels=(plan,)))
        assert world.truth.attacks
        assert differences(world) == []
        (journal,) = world.journals
        assert all(message.number in journal.confirmed for message in journal.messages.values() if not theirs)
        if not loss:
            sent = [sds_id for message in journal.messages.values() for sds_id in message.sds_ids]
            assert all((name, sds_id) in journal.heard for name in plan.participants for sds_id in sent)
