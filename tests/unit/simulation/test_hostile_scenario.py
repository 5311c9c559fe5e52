"""Hostile senders follow from the seed, try every attack, and leave their traces in the truth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.simulation.attacks import ATTACKS, NAMED_ONLY
from reliable_channel.simulation.presets import hostile_scenario
from reliable_channel.simulation.scene import Fate
from reliable_channel.simulation.truth import Truth
from reliable_channel.simulation.world import World, simulate


@pytest.fixture(scope="module")
def world() -> World:
    return simulate(hostile_scenario(7))


def test_the_same_seed_gives_the_same_attacks_and_another_seed_others(world: World) -> None:
    again, other = (simulate(hostile_scenario(seed)) for seed in (7, 8))
    assert world.records == again.records
    assert world.truth == again.truth
    assert world.truth.attacks != other.truth.attacks


def test_the_hostile_demo_tries_every_attack(world: World) -> None:
    attacks = world.truth.attacks
    assert {attack.attack for attack in attacks} == set(ATTACKS)
    assert {attack.fate for attack in attacks} == set(Fate)


def test_a_channel_does_not_depend_on_the_attacks_on_another(world: World) -> None:
    first, second = world.scenario.channels
    quiet = replace(world.scenario, channels=(replace(first, hostile=None), second))
    (_, both), (_, one) = world.journals, simulate(quiet).journals
    assert both == one


@pytest.mark.parametrize("attacks", [(), tuple(NAMED_ONLY)], ids=["usual", "named only"])
def test_attacks_survive_the_truth_files_with_their_kafka_coordinates(tmp_path: Path, attacks: tuple[str, ...]) -> None:
    """Also those under channel ids that no honest participant knows, and with clocks that no column holds."""
    scenario = hostile_scenario()
    channels = [
        replace(plan, hostile=replace(plan.hostile, attacks=attacks)) for plan in scenario.channels if plan.hostile
    ]
    world = simulate(replace(scenario, channels=tuple(channels)))
    assert {attack.attack for attack in world.truth.attacks} == set(attacks or ATTACKS)
    located = world.truth.locate([("t", 0, number) for number in range(len(world.records))])
    located.save(tmp_path)
    assert Truth.load(tmp_path) == located
    for attack in located.attacks:
        assert world.records[attack.offset].label == attack.attack


def test_an_encrypted_channel_cannot_be_attacked() -> None:
    (plan, _) = hostile_scenario().channels
    with pytest.raises(ConfigurationError, match="encrypted"):
        replace(plan, encrypted=True)
