"""The integrity oracle as a search: sequences of attack moves against honest traffic, shrunk to the shortest that
changes an honest row.

The simulation plays the moves and knows the truth; the adapters of the pipeline write the rows, with small memories, so
that a few moves fill them."""

from __future__ import annotations

from hypothesis import strategies as st

from reliable_channel.core.sds import SdsParameters
from reliable_channel.simulation.attacks import ATTACKS, NAMED_ONLY
from reliable_channel.simulation.scenario import ChannelPlan, HostilePlan, LinkQuality, Move, Scenario, SizeMix
from tests.fuzz.cases_format import Step, Target
from tests.support.integrity import find_differences

MINUTE_MS = 60_000
SMALL_MEMORY = SdsParameters(max_waiting=400, max_missing=2_000, max_log_entries=400, max_tracked=20_000)
LOSSES = (0.0, 0.0, 0.1, 0.3)


def scenario_of(steps: list[Step]) -> Scenario:
    """The honest conversation and the moves against it. A step ``scene`` sets seed, loss and who hears the attackers;
    any other step is an attack: ``after_ms`` is the number of the attacked envelope, ``data`` the seed of its draws."""
    scene = next((step.data for step in steps if step.kind == "scene"), b"")
    seed, loss, heard = int.from_bytes(scene[:2]), LOSSES[sum(scene[2:3]) % len(LOSSES)], bool(sum(scene[3:4]) % 2)
    moves = [Move(step.after_ms, step.kind, int.from_bytes(step.data)) for step in steps if step.kind != "scene"]
    hostile = HostilePlan(
        senders=("mallory", "trudy"), per_envelope=0.0, flood=60, heard_by_participants=heard, moves=tuple(moves)
    )
    plan = ChannelPlan(
        channel_id="talk",
        content_topic="/reliable-channel/1/chat/proto",
        participants=("alice", "bob"),
        messages=6,
        duration_ms=MINUTE_MS,
        segment_size=256,
        parity_rate=0.5,
        sizes=SizeMix(short=0.5, medium=0.1, large=0.4, max_segments=3),
        between=LinkQuality(loss=loss),
        to_observer=LinkQuality(loss=loss, duplicate=loss, reorder=loss),
        ephemeral=0.1,
        hostile=hostile,
    )
    return Scenario(seed=seed, channels=(plan,), drain_ms=90_000)


def check_attacks(steps: list[Step]) -> None:
    """Whatever the moves, the rows of honest messages are what the truth says."""
    differences = find_differences(scenario_of(steps), SMALL_MEMORY)
    assert not differences, "; ".join(differences[:3])


_scene = st.builds(Step, st.just("scene"), st.just(0), st.binary(min_size=4, max_size=4))
_move = st.builds(Step, st.sampled_from([*ATTACKS, *NAMED_ONLY]), st.integers(0, 40), st.binary(min_size=2, max_size=2))
ATTACK_MOVES = Target(
    "attacks",
    st.builds(lambda scene, moves: [scene, *moves], _scene, st.lists(_move, max_size=8)),
    check_attacks,
)
