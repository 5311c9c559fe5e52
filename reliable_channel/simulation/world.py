"""Runs a whole scenario: every channel's conversation, the bad input, and the truth about both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reliable_channel.simulation.bad_input import bad_records, plain_waku_records
from reliable_channel.simulation.engine import play_channel
from reliable_channel.simulation.journal import ChannelJournal, ObserverRecord
from reliable_channel.simulation.judge import judge
from reliable_channel.simulation.scenario import Scenario
from reliable_channel.simulation.truth import Truth


@dataclass(frozen=True, slots=True)
class World:
    """A completed scenario. ``records`` are the records of the observer's topic, in the order of reception."""

    scenario: Scenario
    records: list[ObserverRecord]
    journals: list[ChannelJournal]
    truth: Truth


def simulate(scenario: Scenario, advance: Callable[[int, str], None] = lambda _count, _name: None) -> World:
    """Run the scenario; the same scenario gives the same world, byte for byte. ``advance`` is called for each finished
    channel, with their number so far and its name. Channels do not influence each other, so a scenario with fewer
    channels gives the same records for them."""
    journals = []
    for count, plan in enumerate(scenario.channels, 1):
        journals.append(play_channel(plan, scenario))
        advance(count, plan.channel_id)
    observed = [record for journal in journals for record in journal.observed]
    records = sorted(
        [*observed, *bad_records(scenario), *plain_waku_records(scenario)],
        key=lambda r: (r.at_ms, r.key or b""),  # stable: one channel's records keep their order
    )
    return World(scenario, records, journals, judge(journals, records))
