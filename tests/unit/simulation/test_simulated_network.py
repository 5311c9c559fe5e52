"""Links lose, double, delay and cut as they are told."""

from __future__ import annotations

import pytest

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.simulation.network import OBSERVER, Link, are_separated
from reliable_channel.simulation.scenario import PERFECT, GilbertElliott, LinkQuality, Partition


def carry(quality: LinkQuality, count: int, seed: int = 1) -> list[list[int]]:
    link = Link(quality, seed, ("a", "b"))
    return [link.carry() for _ in range(count)]


def longest_run_of_losses(carried: list[list[int]]) -> int:
    longest = run = 0
    for copies in carried:
        run = 0 if copies else run + 1
        longest = max(longest, run)
    return longest


def test_a_perfect_link_brings_every_envelope_once_after_its_delay() -> None:
    assert carry(PERFECT, 50) == [[20]] * 50


def test_the_same_link_and_seed_do_the_same_again_and_another_seed_does_not() -> None:
    quality = LinkQuality(loss=0.3, duplicate=0.2, reorder=0.2)
    assert carry(quality, 200) == carry(quality, 200)
    assert carry(quality, 200) != carry(quality, 200, seed=2)


def test_independent_loss_is_near_its_share() -> None:
    lost = sum(not copies for copies in carry(LinkQuality(loss=0.2), 5_000))
    assert 850 < lost < 1_150


def test_bursty_loss_comes_in_longer_runs_than_independent_loss_of_the_same_share() -> None:
    bursty = carry(LinkQuality(burst=GilbertElliott(0.01, 0.1, 0.0, 1.0)), 5_000)
    share = sum(not copies for copies in bursty) / 5_000
    independent = carry(LinkQuality(loss=share), 5_000)
    assert 0.03 < share < 0.2
    assert longest_run_of_losses(bursty) > 2 * longest_run_of_losses(independent)


def test_duplicates_and_held_envelopes() -> None:
    carried = carry(LinkQuality(duplicate=0.5, reorder=0.5, delay_ms=10, jitter_ms=0, reorder_ms=500), 1_000)
    assert {len(copies) for copies in carried} == {1, 2}
    assert {delay for copies in carried for delay in copies} == {10, 510}


def test_a_partition_cuts_both_ways_for_its_time_and_only_between_its_sides() -> None:
    cut = (Partition(100, 200, frozenset({"a", OBSERVER})),)
    assert are_separated(cut, 100, "a", "b")
    assert are_separated(cut, 199, "b", OBSERVER)
    assert not are_separated(cut, 150, "a", OBSERVER)
    assert not are_separated(cut, 200, "a", "b")
    assert not are_separated(cut, 99, "a", "b")


def test_a_share_above_one_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="duplicate"):
        LinkQuality(duplicate=1.5)
