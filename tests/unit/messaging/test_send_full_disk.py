"""What a messaging node keeps of a request while its disk is full."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.messaging import store
from reliable_channel.transport.base import FailureReason
from reliable_channel.transport.health import Health, HealthState
from reliable_channel.transport.sqlite import transaction
from tests.support.messaging_world import World


def test_an_end_that_cannot_be_stored_is_stored_once_there_is_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = world.node._ledger.requests
    update = requests.update

    def update_once_there_is_room(request_id: str, **changes: Any) -> None:
        if changes.get("state") == "sent":
            monkeypatch.setattr(requests, "update", update)
            raise EnvironmentFault("The disk is full.")
        update(request_id, **changes)

    monkeypatch.setattr(requests, "update", update_once_there_is_room)
    request_id = world.send()
    world.run(3_000)
    assert world.record(request_id).sent
    assert world.node.get_pending_requests() == []


@contextmanager
def full_disk(connection: sqlite3.Connection) -> Iterator[None]:
    """A transaction that the disk has no room for."""
    with transaction(connection):
        yield
        raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize("retrying", [False, True], ids=["a new one", "a retry"])
def test_a_request_whose_attempt_cannot_be_stored_is_attempted_once_there_is_room(
    world: World, monkeypatch: pytest.MonkeyPatch, retrying: bool
) -> None:
    """It counted as in flight, and waited for the time-out of an attempt that nobody made."""
    world.transport.failing = FailureReason.NO_PEERS if retrying else None
    world.node._sender.dispatching = False
    request_id = world.send()
    if retrying:
        world.run()
    with monkeypatch.context() as patch:
        patch.setattr(store, "transaction", full_disk)
        world.clock.advance(1_000)
        with pytest.raises(EnvironmentFault):
            world.node.tick()
    world.transport.failing = None
    world.run(1_000)
    assert world.record(request_id).sent


@pytest.mark.parametrize("call", ["send", "retry", "cancel_request"])
def test_a_call_that_cannot_be_stored_changes_nothing(world: World, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    world.transport.failing = FailureReason.REFUSED if call == "retry" else FailureReason.NO_PEERS
    request_id = world.send()
    world.run()
    before = world.node.get_pending_requests()
    with monkeypatch.context() as patch:
        patch.setattr(store, "transaction", full_disk)
        with pytest.raises(EnvironmentFault):
            world.send() if call == "send" else getattr(world.node, call)(request_id)
    assert world.node.get_pending_requests() == before
    sent = len(world.transport.sent)
    world.transport.failing = None
    world.run(2_000)
    assert len(world.transport.sent) - sent == len(before)


def test_a_node_that_closes_on_a_full_disk_releases_its_database(
    new_world: Callable[..., World], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other node of the process could open it."""
    world = new_world(tmp_path / "messages.sqlite")
    with monkeypatch.context() as patch, pytest.raises(EnvironmentFault):
        patch.setattr(store, "transaction", full_disk)
        world.node.close()
    world.node = world.make_node()
    assert world.send()


def test_a_change_of_the_health_that_cannot_be_stored_is_noted_once_there_is_room(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its event never came, and what waits for a healthy node waited on."""
    world.transport.report(Health(HealthState.UNHEALTHY, "alone"))
    world.transport.failing = FailureReason.NO_PEERS
    request_id = world.send()
    world.run(2_000)
    assert not world.record(request_id).sending
    world.events.clear()
    with monkeypatch.context() as patch:
        patch.setattr(store, "transaction", full_disk)
        world.transport.report(Health(HealthState.HEALTHY, "connected"))
    world.transport.failing = None
    world.run(2_000)
    assert [detail for name, detail in world.events if name == "health:change"] == [HealthState.HEALTHY]
    assert world.record(request_id).sent
