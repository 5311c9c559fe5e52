"""Splits of a channel: those that are simulated are found, and loss, sleep, newcomers and strangers make none."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.testclient import TestClient

from reliable_channel.analysis.alerts.measure import measure_rule
from reliable_channel.analysis.alerts.rules import load_rules
from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.analysis.figures import read_clock
from reliable_channel.analysis.report import splits as splits_module
from reliable_channel.analysis.report.channel_key import ChannelFilter
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.analysis.report.splits import Split, find_circle, find_splits, read_contacts
from reliable_channel.config import PathSettings
from reliable_channel.simulation.scenario import (
    ChannelPlan,
    EpochLimit,
    HostilePlan,
    LinkQuality,
    Nap,
    Partition,
    Scenario,
    SizeMix,
)
from reliable_channel.simulation.world import simulate
from tests.support.simulated_tables import write_simulated

MINUTE_MS = 60_000
WHO = ("alice", "bob", "carol", "dave")


def conversation(seed: int = 1, minutes: int = 20, loss: float = 0.1, **more: Any) -> Scenario:
    """Each participant says something three times a minute."""
    plan = ChannelPlan(
        channel_id="talk",
        content_topic="/reliable-channel/1/chat/proto",
        duration_ms=minutes * MINUTE_MS,
        segment_size=512,
        sizes=SizeMix(short=0.7, medium=0.1, large=0.2, max_segments=3),
        between=LinkQuality(loss=loss, reorder=loss),
        to_observer=LinkQuality(loss=loss / 4),
        repeats=0.0,
        **{"participants": WHO, "messages": 12 * minutes, **more},
    )
    return Scenario(seed=seed, channels=(plan,), drain_ms=0)


def splits(place: Path, **more: Any) -> list[Split]:
    """The splits that the tables of a conversation show, ms after its start."""
    world = simulate(conversation(**more))
    lake, start = write_simulated(place, world), world.scenario.start_ms
    (channel,) = read_contacts(lake, "true", {}, MINUTE_MS).items()
    return [
        Split(each.groups, each.since_ms - start, each.shown_ms - start, each.healed_ms and each.healed_ms - start)
        for each in find_splits(lake, *channel, MINUTE_MS)
    ]


def apart(*members: str) -> Partition:
    return Partition(5 * MINUTE_MS, 13 * MINUTE_MS, frozenset(members), is_observed=True)


def groups(split: Split) -> list[list[str]]:
    return [sorted(group) for group in split.groups]


@pytest.mark.parametrize(
    ("who", "partitions", "expected"),
    [
        (WHO, (apart("carol", "dave"),), [["alice", "bob"], ["carol", "dave"]]),
        (WHO, (apart("carol"),), [["alice", "bob", "dave"], ["carol"]]),
        (WHO[:2], (apart("alice"),), [["alice"], ["bob"]]),
        ((*WHO, "erin", "frank"), (apart("alice", "bob"), apart("erin", "frank")),
         [["alice", "bob"], ["carol", "dave"], ["erin", "frank"]]),
    ],
    ids=["two and two", "one and three", "one and one", "three groups"],
)  # fmt: skip
def test_a_partition_is_found_with_its_groups_and_times(
    who: tuple[str, ...], partitions: tuple[Partition, ...], expected: list[list[str]], tmp_path: Path
) -> None:
    (split,) = splits(tmp_path, participants=who, messages=80 * len(who), partitions=partitions)
    assert groups(split) == expected
    assert abs(split.since_ms - 5 * MINUTE_MS) < MINUTE_MS
    assert split.healed_ms is not None
    assert 11 * MINUTE_MS < split.shown_ms < 14 * MINUTE_MS
    assert 13 * MINUTE_MS < split.healed_ms < 15 * MINUTE_MS


def test_of_a_crowd_only_those_looked_at_have_rows_of_their_own(tmp_path: Path) -> None:
    """All others have one together: the rows of a crowd grow with its number, not with its square."""
    crowd = tuple(f"p{number}" for number in range(24))
    lake = write_simulated(tmp_path, simulate(conversation(minutes=3, loss=0.0, participants=crowd, messages=100)))
    ((key, rows),) = read_contacts(lake, "true", {}, MINUTE_MS).items()
    looked_at = {row["participant"] for row in rows}
    assert len(looked_at) == 20
    assert {row["sender_id"] for row in rows} - {None} <= looked_at
    others = [(row["participant"], row["made_ms"]) for row in rows if row["sender_id"] is None]
    assert len(others) == len(set(others)) > 20
    assert sum(row["settled"] for row in rows if row["sender_id"] is None) > 20  # they count in what is known
    assert find_splits(lake, key, rows, MINUTE_MS) == []


def test_a_split_is_open_until_its_evidence_is_old(tmp_path: Path) -> None:
    lasting = Partition(5 * MINUTE_MS, 99 * MINUTE_MS, frozenset({"carol", "dave"}), is_observed=True)
    (split,) = splits(tmp_path, minutes=12, partitions=(lasting,))
    assert split.healed_ms is None
    assert split.is_open(12 * MINUTE_MS)
    assert not split.is_open(split.shown_ms + 16 * MINUTE_MS)


QUIET: dict[str, dict[str, Any]] = {
    "half an hour of loss": {"minutes": 30, "loss": 0.2},
    "half an hour of loss between two": {"minutes": 30, "loss": 0.2, "participants": WHO[:2]},
    "one sleeps": {"sleeps": (Nap("bob", 4 * MINUTE_MS, 14 * MINUTE_MS),)},
    "one of two sleeps": {"sleeps": (Nap("bob", 4 * MINUTE_MS, 14 * MINUTE_MS),), "participants": WHO[:2]},
    "two sleep": {"sleeps": tuple(Nap(who, 4 * MINUTE_MS, 14 * MINUTE_MS) for who in ("alice", "bob"))},
    "newcomers": {"joins_at": (("carol", 8 * MINUTE_MS), ("dave", 12 * MINUTE_MS))},
    "a rate limit": {"rate_limit": EpochLimit(20, 10 * MINUTE_MS)},
    "the observer on one side": {"partitions": (Partition(5 * MINUTE_MS, 13 * MINUTE_MS, frozenset({"bob", "dave"})),)},
    "hostile senders": {"minutes": 10, "hostile": HostilePlan(("mallory", "mallet"))},
    "hostile senders that only the observer hears": {
        "minutes": 10,
        "hostile": HostilePlan(("mallory", "mallet"), heard_by_participants=False),
    },
}


@pytest.mark.parametrize("what", QUIET)
def test_nothing_else_is_a_split(what: str, tmp_path: Path) -> None:
    assert splits(tmp_path, **QUIET[what]) == []


def test_who_is_apart_by_names_that_nobody_acknowledged_splits_nothing() -> None:
    honest = [("alice", "bob"), ("bob", "alice"), ("carol", "bob"), ("bob", "carol"), ("alice", "carol")]
    invented = [("x", "y"), ("y", "x"), ("x", "alice"), ("y", "bob")]  # they acknowledge; nobody else does
    assert find_circle([*honest, *invented]) == {"alice", "bob", "carol"}
    assert find_circle([*invented, *honest]) == {"x", "y"}, "the oldest of several"
    assert find_circle([]) == frozenset()


@pytest.fixture(scope="module")
def split_tables(tmp_path_factory: pytest.TempPathFactory) -> dict[int, TableSnapshot]:
    """Minute → the tables at that time of a conversation that is split from minute 5 to 13."""
    world = simulate(conversation(seed=3, minutes=20, loss=0.2, partitions=(apart("carol", "dave"),)))
    by_minute = {}
    for minute in (4, 8, 17):
        until = world.scenario.start_ms + minute * MINUTE_MS
        seen = replace(world, records=[record for record in world.records if record.at_ms <= until])
        by_minute[minute] = write_simulated(tmp_path_factory.mktemp("split"), seen)
    return by_minute


def test_an_alert_is_raised_while_a_channel_is_split(split_tables: dict[int, TableSnapshot]) -> None:
    rule = next(rule for rule in load_rules() if rule.kind == "split")
    found = {
        minute: measure_rule(lake, rule, read_clock(lake), dt.datetime.now(dt.UTC))
        for minute, lake in split_tables.items()
    }
    assert found[4] == found[17] == []
    ((subject, value, detail),) = [(each.subject, each.value, each.detail) for each in found[8]]
    assert json.loads(subject)[2] == "talk"
    assert rule.threshold < value < 4 * MINUTE_MS
    assert detail.startswith("groups of 2 and 2 participants lack each other's messages since 2026-01-01 00:0")


def test_only_the_busiest_channels_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (busy,), (quiet,) = (conversation(minutes=5, messages=count).channels for count in (60, 20))
    channels = (replace(quiet, channel_id="quiet"), busy)
    lake = write_simulated(tmp_path, simulate(Scenario(seed=1, channels=channels, drain_ms=0)))
    monkeypatch.setattr(splits_module, "MOST_CHANNELS", 1)
    assert [key.channel_id for key in read_contacts(lake, "true", {}, MINUTE_MS)] == ["talk"]


def test_the_page_of_a_channel_names_the_groups(split_tables: dict[int, TableSnapshot]) -> None:
    client = TestClient(create_app(PathSettings(data_dir=split_tables[17].data_dir)), base_url="http://127.0.0.1")
    key = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/reliable-channel/1/chat/proto", "channel_id": "talk"}
    page = client.get("/channel?" + urlencode({**key, "last": "all"})).text
    assert re.search(r"Split since 2026-01-01 00:0[45]:\d\d, healed by 2026-01-01 00:1[34]:\d\d\.", page)
    assert "messages: alice, bob; carol, dave." in page
    picture = client.get("/charts/channel/shares.svg?" + urlencode({**key, "last": "all"}))
    assert picture.status_code == 200
    assert "carol: 0 of" not in picture.text
    assert re.search(r"carol: \d+ of \d+ messages", picture.text)


class Lake:
    """A snapshot whose only rows are acknowledgements."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self.rows = [{"acknowledged_by": by, "sender_id": sender} for by, sender in pairs]

    def select(self, sql: str, parameters: object) -> list[dict[str, Any]]:
        return self.rows


def shows(who: str, minute: float, **senders: tuple[float | None, float | None]) -> list[dict[str, Any]]:
    """Rows of a participant: sender → (minute of the newest message that it had, since when it is cut off)."""

    def ms(minutes: float | None) -> int | None:
        return None if minutes is None else int(minutes * MINUTE_MS)

    return [
        {"participant": who, "made_ms": ms(minute), "sender_id": sender, "last_had_ms": ms(had), "cut_off_ms": ms(off)}
        for sender, (had, off) in senders.items()
    ]


@pytest.mark.parametrize(
    ("acknowledgements", "expected"),
    [
        ([("alice", "bob"), ("bob", "alice"), ("x", "y"), ("y", "x"), ("x", "alice")], []),
        ([("alice", "x"), ("x", "alice"), ("alice", "bob"), ("bob", "alice"), ("x", "y"), ("y", "x")], []),
        ([("x", "y"), ("y", "x")], [[["x"], ["y"]]]),
    ],
    ids=["names that nobody acknowledged", "those who are heard by everybody", "a channel of their own"],
)
def test_invented_participants_that_claim_to_be_apart_split_no_others(
    acknowledgements: list[tuple[str, str]], expected: list[list[list[str]]]
) -> None:
    rows = [
        *shows("alice", 9, bob=(8.9, None), x=(8.9, None), y=(8.9, None)),
        *shows("bob", 9.1, alice=(8.9, None), x=(8.9, None), y=(8.9, None)),
        *shows("x", 9.2, alice=(None, 5), y=(None, 5)),
        *shows("y", 9.3, alice=(None, 5), x=(None, 5)),
    ]
    found = find_splits(Lake(acknowledgements), ChannelFilter(None, None, None), rows, MINUTE_MS)  # type: ignore[arg-type]
    assert [groups(split) for split in found] == expected
