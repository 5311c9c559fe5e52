"""Ids that one participant alone claims are counted apart, in no figure of messages."""

from __future__ import annotations

import duckdb
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.analysis.figures import LOSS, VERDICTS
from reliable_channel.pipeline.verdict.rules import Cause, Verdict

CLAIMED = (Verdict.UNKNOWN.value, Cause.CLAIMED_BY_ONE.value)
HONEST = st.sampled_from([("delivered", None), ("missing", None), ("missing", "never_sent"), ("unknown", "unsettled")])


@given(st.lists(HONEST, max_size=20), st.integers(0, 50))
def test_claims_change_no_figure_but_their_own(honest: list[tuple[str, str | None]], claims: int) -> None:
    *without, none = read_figures(honest)
    *figures, claimed = read_figures([*honest, *[CLAIMED] * claims])
    assert (figures, none, claimed) == (without, 0, claims)


def read_figures(rows: list[tuple[str, str | None]]) -> tuple[object, ...]:
    lake = duckdb.connect()
    lake.execute("CREATE TABLE delivery_status (verdict VARCHAR, cause VARCHAR)")
    for row in rows:
        lake.execute("INSERT INTO delivery_status VALUES (?, ?)", row)
    names = f"messages, delivered, late, missing, unknown, {LOSS}, claimed"
    found = lake.execute(f"SELECT {names} FROM (SELECT {VERDICTS} FROM delivery_status)").fetchone()  # noqa: S608
    assert found is not None
    return found
