"""The integrity oracle: with any number of hostile senders beside honest ones, every honest message that reached the
observer is delivered once with its own payload and sender, or named missing with a true cause.

The simulation plays the attacks and knows the truth; the pipeline's adapters (decoder, sets, observers) write the rows.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from reliable_channel.core.sds import SdsParameters
from reliable_channel.simulation.attacks import ATTACKS, NAMED_ONLY
from reliable_channel.simulation.invented_names import early_copy_with_another_history
from reliable_channel.simulation.presets import hostile_scenario
from reliable_channel.simulation.scenario import Scenario
from reliable_channel.simulation.world import simulate
from tests.support.examples import examples
from tests.support.integrity import attack_scenario, find_differences


def differences(scenario: Scenario) -> list[str]:
    # A flood of thousands by as many names pushes messages out of those whose acknowledgements are tracked.
    return find_differences(scenario, SdsParameters(max_tracked=20_000))


@pytest.mark.parametrize("heard", [False, True], ids=["observer", "everybody"])
@pytest.mark.parametrize("attack", [*ATTACKS, *NAMED_ONLY])
def test_one_attack_on_envelope_after_envelope_changes_no_honest_row(attack: str, heard: bool) -> None:
    # Participants answer a flood, and the answers are flooded in turn: without an end if every one was.
    share = 0.9 if attack == "flood" else 1.0
    assert differences(attack_scenario(0, (attack,), per_envelope=share, heard=heard)) == []


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    senders=st.integers(1, 5),
    per_envelope=st.sampled_from([0.1, 0.5, 1.0]),
    loss=st.sampled_from([0.0, 0.1, 0.3]),
    heard=st.booleans(),
)
@example(seed=50_865, senders=1, per_envelope=1.0, loss=0.3, heard=False)  # copies rebuild a segment in another channel
def test_any_attacks_change_no_honest_row(
    seed: int, senders: int, per_envelope: float, loss: float, heard: bool
) -> None:
    attacks = (*ATTACKS, *NAMED_ONLY)
    assert differences(attack_scenario(seed, attacks, senders, per_envelope, loss, heard)) == []


@pytest.mark.parametrize("seed", [1, 4, 7, 13, 15, 17, 21])
def test_the_hostile_demo_matches_its_truth(seed: int) -> None:
    assert differences(hostile_scenario(seed)) == []


def test_an_attack_leaves_the_honest_conversation_as_it_is_where_only_the_observer_hears_it() -> None:
    """Only copies of honest messages count as these: they arrive with the first of them."""
    attacks = tuple(attack for attack in ATTACKS if attack != early_copy_with_another_history.__name__)
    scenario = attack_scenario(3, attacks, heard=False, per_envelope=1.0)
    (plan,) = scenario.channels
    alone = simulate(replace(scenario, channels=(replace(plan, hostile=None),)))
    together = simulate(scenario)
    assert together.truth.attacks
    assert replace(together.truth, attacks=[]) == alone.truth
    assert [r for r in together.records if r.forgery is None] == alone.records
