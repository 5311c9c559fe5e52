"""The short path for what is in order does what the whole way does."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.sds import SdsChannel, SdsParameters
from reliable_channel.core.sds.receiving import SdsReceiver
from tests.support.examples import examples
from tests.support.sds_inside import log_positions
from tests.unit.sds.sds_network import CHANNEL, T0, message, opened
from tests.unit.sds.sds_scripts import Action, act, actions, configs


def whole_way(channel: SdsChannel) -> SdsChannel:
    """The channel without the short path."""
    receiver = channel._receiver

    receiver._deliver_in_order = lambda *_: False  # type: ignore[method-assign]
    return channel


@settings(max_examples=examples(300))
@given(participant=st.sampled_from([None, "alice"]), config=configs, script=actions)
def test_the_short_path_does_what_the_whole_way_does(
    participant: str | None, config: SdsParameters, script: list[Action]
) -> None:
    short = SdsChannel(CHANNEL, participant, config)
    whole = whole_way(SdsChannel(CHANNEL, participant, config))
    now = T0
    for number, action in enumerate(script):
        now += action.wait
        assert act(short, action, now, number) == act(whole, action, now, number)
    assert short.to_bytes() == whole.to_bytes()


def test_what_is_in_order_takes_the_short_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while other messages wait."""

    def fail(*_: Any) -> None:
        raise AssertionError("the whole way")

    channel = opened()
    channel.receive(message("waits", "carol", T0 + 9, ("nowhere",)), T0 + 9)
    monkeypatch.setattr(SdsReceiver, "_accept", fail)
    for number in range(3):
        history = (f"m{number - 1}",) if number else ()
        channel.receive(message(f"m{number}", "bob", T0 + 10 + number, history, b"%d" % number), T0 + 10)
    assert len(log_positions(channel)) == 3
