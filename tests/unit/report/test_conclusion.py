"""The sentence that sums a report up."""

from __future__ import annotations

from typing import Any

import pytest

from reliable_channel.analysis.conclusion import conclusion

ALL_WELL = {"delivered": 40, "missing": 0}


MANY = [
    {"channel_id": f"{number}", "delivered": 10 - number % 4 // 3, "missing": number % 4 // 3}
    for number in range(1_000)
]
"""A thousand channels with ten messages each, of which every fourth misses one."""


def channel(name: str, delivered: int, missing: int) -> dict[str, Any]:
    return {"channel_id": name, "delivered": delivered, "missing": missing}


def cause(name: str | None, messages: int) -> dict[str, Any]:
    return {"verdict": "missing", "cause": name, "messages": messages}


def said(channels: list[dict[str, Any]], causes: list[dict[str, Any]]) -> str | None:
    totals = {name: sum(row[name] for row in channels) for name in ("delivered", "missing")}
    return conclusion(totals, channels, causes)


def test_nothing_settled_says_nothing() -> None:
    assert said([], []) is None


def test_nothing_missing_is_said() -> None:
    assert said([channel("talk", 40, 0)], []) == "All 40 settled messages were delivered."


@pytest.mark.parametrize(("missing", "outcome"), [(0, "was delivered"), (1, "is missing")])
def test_one_message_is_no_share(missing: int, outcome: str) -> None:
    channels = [channel("talk", 1 - missing, missing)]
    assert said(channels, [cause(None, missing)]) == f"The only settled message {outcome}."


def test_the_channel_that_misses_much_more_and_the_commonest_cause_are_named() -> None:
    told = said(
        [channel("talk", 95, 5), channel("ops", 80, 20)],
        [
            cause("segment_missing", 5),
            cause("propagated_not_stored", 20),
            {**cause("late", 99), "verdict": "delivered"},
        ],
    )
    assert told == (
        "12.5 % of 200 settled messages are missing. The channel ops misses 20.0 %, all others 5.0 %."
        " 20 of the 25: propagated not stored."
    )


@pytest.mark.parametrize(
    "channels",
    [
        [channel("talk", 90, 10), channel("ops", 88, 12)],  # alike
        [channel("talk", 190, 10), channel("ops", 4, 4)],  # too few to say
        [channel("talk", 90, 10)],  # no others
        MANY,
    ],
)
def test_no_channel_is_named_where_that_would_be_chance(channels: list[dict[str, Any]]) -> None:
    assert "channel" not in (said(channels, [cause(None, 10)]) or "")


def test_a_cause_that_is_not_known_is_called_so() -> None:
    assert (said([channel("talk", 9, 1)], [cause("unexplained", 1)]) or "").endswith("1 of the 1: cause unknown.")


def test_a_name_from_the_network_cannot_steer_a_terminal() -> None:
    assert "\x1b" not in (said([channel("\x1b[2J", 50, 50), channel("talk", 99, 1)], [cause("late", 51)]) or "")


def test_one_channel_of_many_is_named_where_it_misses_more_than_by_chance() -> None:
    told = said([*MANY, channel("ops", 5, 15)], [])
    assert told is not None and "The channel ops misses 75.0 %, all others 2.5 %." in told
    assert said([channel("ops", 0, 20), channel("talk", 0, 90)], []) == "100 % of 110 settled messages are missing."
