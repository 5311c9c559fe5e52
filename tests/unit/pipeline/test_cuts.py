"""Batch cuts do not matter: the very functions Spark runs, cut into micro-batches anywhere, give the same rows.

No Spark here: the state store is a stand-in of a few lines; combiner, stateful function, state codec and timers are the
real ones. ``tests/spark/test_chain.py`` does the same with Spark itself.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reliable_channel.core.sds import SdsParameters
from reliable_channel.lake.schema import Row
from reliable_channel.pipeline.ack.observer import ChannelObserver
from reliable_channel.pipeline.ack.records import InputRow
from tests.support.cuts import PHASES, START, add_send, as_rows, channels, conversations, cut, reassemble
from tests.support.examples import examples


@st.composite
def resends(draw: st.DrawFn) -> list[dict[str, Any]]:
    """The same payload by the same sender a few times, one after the other, nothing lost."""
    payload = draw(st.binary(min_size=65, max_size=400))
    arrivals: list[tuple[int, dict[str, Any]]] = []
    lamport = START
    for number in range(draw(st.integers(2, 3))):
        lamport = add_send(draw, payload, "alice", lamport, START + number * 60_000, [1, 1, 2], arrivals)
    return as_rows(arrivals)


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], phases=PHASES
)
@given(rows=conversations(), cuts=st.lists(st.integers(0, 10_000), max_size=8))
def test_reassembly_gives_the_same_rows_for_every_cut(
    rows: list[dict[str, Any]], cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, pieces = reassemble(rows, [], monkeypatch), reassemble(rows, cuts, monkeypatch)
    assert pieces.tables() == whole.tables()
    assert (pieces.open.count, whole.open.count) == (0, 0), "a state without a timer would never end"
    assert not any(state.exists for state in pieces.states.values())


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=resends(), cuts=st.lists(st.integers(0, 10_000), max_size=6))
def test_the_same_payload_sent_again_is_another_message_in_every_cut(
    rows: list[dict[str, Any]], cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = len({row["send"] for row in rows if "send" in row})
    tables = reassemble(rows, cuts, monkeypatch).tables()
    assert (len(tables["reassembled_messages"]), len(tables.get("incomplete", []))) == (sends, 0)


KEY = ("p", "c", "talk", "spec")


@settings(max_examples=examples(60), deadline=None)
@given(rows=channels(), cuts=st.lists(st.integers(0, 10_000), max_size=6), expiry_ms=st.sampled_from([None, 1, 10**7]))
def test_a_channel_gives_the_same_rows_for_every_cut(
    rows: list[InputRow], cuts: list[int], expiry_ms: int | None
) -> None:
    config = SdsParameters()
    whole = ChannelObserver(KEY, None, config, expiry_ms)
    expected = [output for row in rows for output in whole.take(row)]
    found: list[Row] = []
    observer = ChannelObserver(KEY, None, config, expiry_ms)
    for piece in cut(rows, cuts):
        observer = ChannelObserver.from_bytes(observer.to_bytes(), KEY, None, config, expiry_ms)
        for row in piece:
            # A tick only reaches a channel with a timer that is due.
            if row.row_kind == "tick" and not observer.is_due(row.event_us):
                continue
            found += observer.take(row)
    assert found == expected
