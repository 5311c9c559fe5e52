"""The check of a store's hashes: it finds what no participant names any more, and fetches nothing that arrived."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.channel import ChannelProblem, retrieval
from reliable_channel.channel.retrieval import CHECK_PERIOD_MS
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.store.model import StorePage, StoreQuery
from tests.unit.channel.channel_world import Recorder, World, quick

SILENT = quick(sds={"max_retransmissions": 0, "sync_min_interval_ms": 0, "repair": False})
"""A sender that says everything once."""


class Store:
    """Passes queries on to the network's store, notes them, and may fail."""

    def __init__(self, world: World, name: str) -> None:
        self._answer = world.node(name).query_store
        self.fails = self.fails_for_hashes = self.is_v1 = False
        self.queries: list[StoreQuery] = []
        self.entries: list[int] = []
        world.node(name).query_store = self.query  # type: ignore[method-assign]

    def query(self, query: StoreQuery) -> StorePage:
        self.queries.append(query)
        if self.fails or (self.fails_for_hashes and query.hashes):
            raise EnvironmentFault("The store is away.", "Wait.")
        assert not (self.is_v1 and query.hashes)
        page = self._answer(replace(query, include_data=query.include_data or self.is_v1))
        self.entries.append(len(page.entries))
        return page


def join_two(**changes: Any) -> tuple[World, Recorder, Recorder, Store]:
    """Alice, and Bob with the store that he asks."""
    world = World()
    store = Store(world, "bob")
    alice, bob = world.join("alice", SILENT), world.join("bob", quick(**changes))
    world.run(1_000)
    store.queries.clear()
    store.entries.clear()
    return world, alice, bob, store


def send_to_nobody(world: World, sender: Recorder) -> None:
    world.blocked.add("bob")
    sender.channel.send(b"lost")
    world.run(1_000)
    world.blocked.clear()


def test_a_message_that_nobody_names_any_more_is_found_by_its_hash() -> None:
    world, alice, bob, store = join_two()
    for number in range(5):
        alice.channel.send(b"message %d" % number)
    bob.channel.send(b"of my own")
    world.run(2_000)
    send_to_nobody(world, alice)
    alice.channel.close()
    del world.recorders["alice"]
    world.run(CHECK_PERIOD_MS, step_ms=1_000)
    assert bob.payloads[-1] == b"lost"
    check, fetch = store.queries
    assert not check.include_data
    assert (len(fetch.hashes), store.entries[1]) == (1, 1)


def test_a_check_that_failed_is_made_up_for_and_reported_once() -> None:
    world, alice, bob, store = join_two(sds={"repair": False})
    store.fails = True
    send_to_nobody(world, alice)
    del world.recorders["alice"]
    world.run(3 * CHECK_PERIOD_MS, step_ms=1_000)
    assert (len(store.queries), bob.problems()) == (3, ["store_failed"])
    assert b"lost" not in bob.payloads
    store.fails = False
    world.run(CHECK_PERIOD_MS, step_ms=1_000)
    assert b"lost" in bob.payloads


def test_what_a_store_did_not_give_after_a_check_is_asked_for_after_the_next_one() -> None:
    """The check had succeeded, and nothing asked for what it had found any more."""
    world, alice, bob, store = join_two(sds={"repair": False})
    send_to_nobody(world, alice)
    del world.recorders["alice"]
    store.fails_for_hashes = True
    world.run(2 * CHECK_PERIOD_MS, step_ms=1_000)
    assert (bob.payloads, bob.problems()) == ([], ["store_failed"] * 2)
    store.fails_for_hashes = False
    world.run(CHECK_PERIOD_MS, step_ms=1_000)
    assert bob.payloads == [b"lost"]


@pytest.mark.parametrize("query_on_connect", [True, False], ids=["check", "range"])
def test_an_answer_that_is_cut_short_is_reported(monkeypatch: pytest.MonkeyPatch, query_on_connect: bool) -> None:
    monkeypatch.setattr(retrieval, "MAX_PAGES", 1)
    world, alice, bob, _ = join_two(query_on_connect=query_on_connect)
    world.blocked.add("bob")
    for number in range(150):
        alice.channel.send(b"message %d" % number)
        world.run(100)
    if query_on_connect:
        world.run(CHECK_PERIOD_MS, step_ms=1_000)
    else:
        bob.channel._cycle._queries.want_range(world.now - CHECK_PERIOD_MS)
    world.run(1_000)
    assert bob.problems() == ["store_failed"]
    assert "more than 1 pages" in bob.of(ChannelProblem)[0].detail
    monkeypatch.undo()
    world.run(2 * CHECK_PERIOD_MS, step_ms=1_000)
    assert not query_on_connect or len(bob.payloads) == 150, "what the check did not read is read by a later one"


def test_a_check_that_was_cut_short_goes_on_where_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """It began at the same place each time, for a day: what came after was never checked, and what it had read was
    fetched again once its hashes were forgotten."""
    monkeypatch.setattr(retrieval, "MAX_PAGES", 1)
    world, alice, bob, store = join_two(sds={"repair": False})
    world.blocked.add("bob")
    for number in range(250):
        alice.channel.send(b"message %d" % number)
        world.run(100)
    alice.channel.close()
    del world.recorders["alice"]
    world.run(3 * CHECK_PERIOD_MS + 2_000, step_ms=1_000)
    assert sorted(bob.payloads) == sorted(b"message %d" % number for number in range(250))
    assert sum(len(query.hashes) for query in store.queries) == 250


def test_a_store_that_can_be_queried_for_no_hash_gives_the_envelopes_themselves() -> None:
    world, alice, bob, store = join_two(sds={"repair": False})
    store.is_v1 = True
    alice.channel.send(b"received")
    world.run(1_000)
    send_to_nobody(world, alice)
    del world.recorders["alice"]
    world.run(CHECK_PERIOD_MS, step_ms=1_000)
    assert (bob.payloads, bob.problems()) == ([b"received", b"lost"], [])
    assert len(store.queries) == 1


def test_a_channel_that_does_not_query_on_connect_checks_nothing() -> None:
    world, alice, bob, store = join_two(query_on_connect=False, sds={"repair": False})
    send_to_nobody(world, alice)
    del world.recorders["alice"]
    world.run(2 * CHECK_PERIOD_MS, step_ms=1_000)
    assert (store.queries, bob.payloads) == ([], [])


def test_hashes_that_are_forgotten_cost_a_second_copy_and_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "MAX_REMEMBERED_HASHES", 3)
    world, alice, bob, store = join_two()
    for number in range(6):
        alice.channel.send(b"message %d" % number)
    world.run(CHECK_PERIOD_MS + 2_000, step_ms=1_000)
    assert bob.payloads == [b"message %d" % number for number in range(6)]
    assert sum(len(query.hashes) for query in store.queries) >= 3


def test_stopping_forgets_the_check_and_starting_asks_again() -> None:
    world, alice, bob, store = join_two()
    bob.channel.stop()
    world.run(2 * CHECK_PERIOD_MS, step_ms=1_000)
    assert store.queries == []
    send_to_nobody(world, alice)
    bob.channel.start()
    world.run(1_000)
    assert bob.payloads == [b"lost"]


def test_after_an_outage_a_store_is_asked_for_all_of_it_whatever_left_before_that() -> None:
    """It was asked for the time since the last own message, and the check ten minutes later found the rest."""
    world, alice, bob, _ = join_two()
    node = world.node("bob")
    node.report(Health(HealthState.UNHEALTHY))
    send_to_nobody(world, alice)
    world.run(2 * CHECK_PERIOD_MS // 3, step_ms=1_000)
    bob.channel.send(b"of my own")
    world.run(1_000)
    node.report(Health(HealthState.HEALTHY))
    world.run(1_000)
    assert bob.payloads == [b"lost"]


def test_what_is_written_without_a_node_does_not_hide_what_was_missed_from_the_next_start(tmp_path: Path) -> None:
    """A laptop on a journey; nobody names the message any more."""
    database: dict[str, Any] = {"history_backend": "sqlite", "database": tmp_path / "bob.sqlite"}
    world, alice, bob, _ = join_two(**database)
    node = world.node("bob")
    node.failing = FailureReason.UNREACHABLE
    send_to_nobody(world, alice)
    world.run(2 * CHECK_PERIOD_MS // 3, step_ms=1_000)
    bob.channel.send(b"of my own")
    world.run(1_000)
    bob.channel.close()
    node.failing = None
    bob = world.join("bob", quick(**database))
    world.run(1_000)
    assert bob.payloads == [b"lost"]


@pytest.mark.parametrize("fails", [True, False], ids=["the store was away", "ended too soon"])
@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "closed"])
def test_what_a_query_did_not_bring_before_a_channel_ended_is_asked_for_at_its_next_start(
    tmp_path: Path, fails: bool, is_killed: bool
) -> None:
    """As by `send`, which ends after a second. What arrived meanwhile passed for a sign that nothing was missed."""
    database: dict[str, Any] = {"history_backend": "sqlite", "database": tmp_path / "bob.sqlite"}
    world, alice, bob, store = join_two(**database)
    carol = world.join("carol", replace(SILENT, query_on_connect=False))
    bob.channel.close()
    del world.recorders["bob"]
    world.blocked.add("carol")
    alice.channel.send(b"lost")
    world.run(CHECK_PERIOD_MS // 2, step_ms=1_000)
    world.blocked.clear()
    store.fails = fails
    bob = world.join("bob", quick(**database))
    carol.channel.send(b"of carol")
    carol.channel.step()
    world.network.pump()
    if fails:
        world.run(1_000)
    del world.recorders["bob"]
    if is_killed:
        (tmp_path / "killed").mkdir()
        for file in tmp_path.glob("bob.sqlite*"):
            shutil.copy(file, tmp_path / "killed" / file.name)
        database["database"] = tmp_path / "killed" / "bob.sqlite"
    bob.channel.close()
    store.fails = False
    bob = world.join("bob", quick(**database))
    world.run(1_000)
    assert b"lost" in bob.payloads


@pytest.mark.parametrize(("days", "reported"), [(0.5, []), (3, ["long_absence"])])
def test_a_participant_that_was_away_for_longer_than_stores_are_asked_for_says_so(
    tmp_path: Path, days: float, reported: list[str]
) -> None:
    """It asked for the last day, and nothing showed that what was sent before that was not received."""
    database: dict[str, Any] = {"history_backend": "sqlite", "database": tmp_path / "bob.sqlite"}
    world, alice, bob, _ = join_two(**database)
    alice.channel.send(b"before")
    world.run(1_000)
    bob.channel.close()
    del world.recorders["bob"], world.recorders["alice"]
    world.run(round(days * 86_400_000), step_ms=3_600_000)
    bob = world.join("bob", quick(**database))
    world.run(1_000)
    assert bob.problems() == reported
    bob.channel.close()
    assert world.join("bob", quick(**database)).problems() == [], "once"


def test_a_channel_on_which_nobody_speaks_was_not_away_when_its_node_is_back() -> None:
    world, alice, bob, _ = join_two()
    alice.channel.send(b"before")
    world.run(1_000)
    del world.recorders["alice"]
    world.run(3 * 86_400_000, step_ms=3_600_000)
    node = world.node("bob")
    for state in (HealthState.MINIMALLY_HEALTHY, HealthState.UNHEALTHY, HealthState.HEALTHY):
        node.report(Health(state))
        world.run(1_000)
    assert bob.problems() == []
    node.report(Health(HealthState.UNHEALTHY))
    world.run(2 * 86_400_000, step_ms=3_600_000)
    node.report(Health(HealthState.HEALTHY))
    world.run(1_000)
    assert bob.problems() == ["long_absence"]
