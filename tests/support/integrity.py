"""The integrity oracle: the simulation plays a scenario and knows the truth; the pipeline's adapters write the rows."""

from __future__ import annotations

from reliable_channel.analysis.report.check import check
from reliable_channel.core.sds import SdsParameters
from reliable_channel.simulation.scenario import Scenario
from reliable_channel.simulation.world import simulate
from tests.support.adapters import Adapters

HOUR_MS = 3_600_000
ELSEWHERE = ("quarantine", "incomplete messages")
"""The promises that are kept by tables which these adapters do not fill alone."""


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
