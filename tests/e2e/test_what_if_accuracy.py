"""Predictions of ``what-if`` are as near as docs/howto/what-if.md has it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reliable_channel.simulation.scenario import (
    GilbertElliott,
    LinkQuality,
)
from reliable_channel.simulation.what_if.prediction import (
    fit_losses,
)
from tests.support.what_ifs import BASE, OTHER, PLAN, compare, record

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

LONG = replace(PLAN, messages=200, duration_ms=20 * 60_000)
BURSTS = LinkQuality(burst=GilbertElliott(good_to_bad=0.05, bad_to_good=0.3))
RECORDED = {
    "5 % loss": replace(LONG, between=LinkQuality(loss=0.05)),
    "15 % loss": LONG,
    "bursts": replace(LONG, between=BURSTS),
    "15 % loss, with parity": replace(LONG, parity_rate=0.5),
}


@pytest.mark.parametrize("recorded", RECORDED)
def test_all_predictions_are_as_near_as_the_page_has_it(recorded: str, tmp_path: Path) -> None:
    """docs/howto/what-if.md, *How good it is*."""
    plan = RECORDED[recorded]
    base = replace(BASE, parity=plan.parity_rate or 0.0)
    recording = fit_losses(record(tmp_path, plan), base)
    for name, changes in OTHER.items():
        # There one message in twenty waits 5 s for its retransmission: p95 is 0.3 s in one conversation, 5 s in the
        # next.
        p95 = None if (recorded, name) == ("5 % loss", "no repair") else 0.6
        compare(recording, plan, replace(base, **changes), 0.15, p95)
