"""How long stores that fail are left alone."""

from __future__ import annotations

import datetime as dt
import time
from itertools import pairwise

import pyarrow as pa
import pytest

from reliable_channel.config import Settings
from reliable_channel.evidence.refetch import RefetchResult, find_pause
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from tests.support.refetching import (
    LOST,
    STORED,
    MemoryNode,
    presence,
    request,
    run,
)


def answer_at(settings: Settings, *rows: tuple[float, str, str | None]) -> None:
    """Rows of ``store_presence``: how many seconds ago, outcome and detail."""
    now_us = time.time_ns() // 1000
    made = [
        {
            "node": "a",
            "purpose": "refetch",
            "outcome": outcome,
            "detail": detail,
            "asked_at": now_us - int(ago_s * 10**6),
        }
        for ago_s, outcome, detail in rows
    ]
    create_tables(settings.paths, (tables.STORE_PRESENCE,))
    append_rows(settings.paths, tables.STORE_PRESENCE, as_arrow(made, tables.STORE_PRESENCE))


def test_stores_that_fail_for_an_hour_are_asked_every_five_minutes(settings: Settings) -> None:
    request(settings, "m1", STORED)
    answer_at(settings, (7_200, "absent", None), (3_600, "error", "busy"), (60, "error", "unreachable"))
    node = MemoryNode("a", STORED)
    outcome, written = run(settings, node)
    assert (node.queries, written, outcome.requests) == (0, [], 0)
    assert outcome.pause is not None
    assert outcome.pause.until - outcome.pause.since == dt.timedelta(seconds=3_600 - 60 + 300)
    assert str(outcome).startswith("no store node has answered since ")


def test_another_store_node_is_asked_at_once(settings: Settings) -> None:
    request(settings, "m1", STORED)
    answer_at(settings, (3_600, "error", "busy"), (60, "error", "unreachable"))
    assert run(settings, MemoryNode("b", STORED))[0] == RefetchResult(requests=1, written=1)


def test_a_store_that_fails_for_an_hour_does_not_delay_the_others(settings: Settings) -> None:
    """It would take all its time-outs for each query of each round."""
    request(settings, "m1", STORED)
    answer_at(settings, (3_600, "error", "busy"), (60, "error", "unreachable"))
    failing, other = MemoryNode("a", broken=True), MemoryNode("b", STORED)
    assert run(settings, failing, other)[0] == RefetchResult(requests=1, written=1)
    assert failing.queries == 0
    assert presence(settings)["b", "m1"] == "present"


def test_after_the_pause_stores_are_asked_for_all_that_is_open(settings: Settings) -> None:
    request(settings, "m1", STORED)
    answer_at(settings, (3_600, "error", "busy"), (301, "error", "unreachable"))
    outcome, written = run(settings, MemoryNode("a", STORED))
    assert (outcome, [entry.message for entry in written]) == (RefetchResult(requests=1, written=1), [STORED])
    request(settings, "m2", LOST)
    assert run(settings, MemoryNode("a"))[0] == RefetchResult(requests=1), "one has answered"


@pytest.mark.parametrize(
    "answers",
    [
        [(90, "error", "busy"), (10, "absent", None), (5, "error", "busy")],
        [(90, "error", "busy"), (10, "error", "another message"), (5, "error", "busy")],
        [(90, "error", "busy"), (20, "error", "busy"), (-7_200, "error", "busy")],
        [(50, "error", "busy"), (0, "error", "busy")],
    ],
    ids=["an answer in between", "an envelope that is another message", "a clock that was set back", "one round"],
)
def test_nobody_waits_after_one_failure(settings: Settings, answers: list[tuple[float, str, str | None]]) -> None:
    request(settings, "m1", STORED)
    answer_at(settings, *answers)
    assert run(settings, MemoryNode("a", STORED))[0] == RefetchResult(requests=1, written=1)


def test_the_pause_doubles_while_nobody_answers() -> None:
    begin, failures, asked_at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), list[dt.datetime](), list[int]()
    for second in range(0, 3_600, 10):
        now = begin + dt.timedelta(seconds=second)
        rows = {"outcome": ["error"] * len(failures), "detail": ["busy"] * len(failures)}
        times = pa.array(failures, pa.timestamp("us", "UTC"))
        schema = pa.schema([("outcome", pa.string()), ("detail", pa.string()), ("asked_at", times.type)])
        answers = pa.table({**rows, "asked_at": times}, schema=schema)
        if find_pause(answers, now) is None:
            asked_at.append(second)
            failures.append(now)
    assert asked_at[:10] == [0, 10, 20, 30, 40, 50, 60, 120, 240, 480]
    assert {later - one for one, later in pairwise(asked_at[9:])} == {300}
