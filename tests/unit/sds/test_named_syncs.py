"""Sync messages meet the dependencies that name them and take no id (docs/sds.md, *Sync messages that are named*)."""

from __future__ import annotations

import pytest

from reliable_channel.core.sds import Buffered, Conflict, Delivered, SdsChannel
from reliable_channel.core.sds.incoming import MAX_SYNCS
from reliable_channel.core.sds.verify import id_verified
from reliable_channel.core.wire.sds import WireFamily
from tests.support.sds_inside import log_positions
from tests.unit.sds.sds_network import T0, message, of_type, opened

SYNC = message("sync-1", "nim", T0 + 1, content=None)


@pytest.mark.parametrize("participant", [None, "alice"])
@pytest.mark.parametrize("restored", [False, True])
def test_a_sync_message_meets_what_names_it_whichever_comes_first(restored: bool, participant: str | None) -> None:
    channel = opened(participant, before_observation=False)
    channel.receive(SYNC, T0 + 2)
    waiting = message("b", "nim", T0 + 3, ("never", "sync-2"))
    channel.receive(waiting, T0 + 4)
    channel.receive(message("sync-2", "nim", T0 + 2, content=None), T0 + 5)
    if restored:
        channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    step = channel.receive(message("a", "nim", T0 + 2, ("sync-1",)), T0 + 6)
    assert [event.message_id for event in of_type(step, Delivered)] == ["a"]
    step = channel.receive(message("never", "nim", T0 + 1), T0 + 7)
    assert [(event.message_id, event.lost_dependencies) for event in of_type(step, Delivered)] == [
        ("never", ()),
        ("b", ()),
    ]
    assert channel.missing_ids() == ()


@pytest.mark.parametrize("participant", [None, "alice"])
def test_a_sync_message_takes_no_id_from_content(participant: str | None) -> None:
    channel = opened(participant)
    channel.receive(SYNC, T0 + 2)
    step = channel.receive(message("sync-1", "nim", T0 + 2, content=b"text"), T0 + 3)
    assert [(type(event).__name__, event.content) for event in of_type(step, Delivered)] == [("Delivered", b"text")]
    assert of_type(step, Conflict) == []


def test_a_sync_message_under_an_id_that_could_be_a_contents_digest_meets_nothing() -> None:
    channel = opened(None)
    forged = message("0" * 64, "mallory", T0 + 1, content=None)
    channel.receive(forged, T0 + 2, id_verified=id_verified(forged, WireFamily.SPEC))
    step = channel.receive(message("a", lamport=T0 + 2, history=("0" * 64,)), T0 + 3)
    assert of_type(step, Delivered) == []
    assert id_verified(forged, WireFamily.NIM) is None


def test_sync_messages_that_went_out_are_known_where_peers_name_them() -> None:
    alice = opened(wire_family=WireFamily.NIM)
    alice.send(b"hello", T0 + 1)
    (sync,) = alice.send_sync(T0 + 2).outgoing
    step = alice.receive(message("a", "nim", T0 + 3, (sync.message.message_id,)), T0 + 4)
    assert [event.message_id for event in of_type(step, Delivered)] == ["a"]


def test_a_pipeline_with_a_participant_knows_its_sync_messages() -> None:
    alice = opened(before_observation=False)
    alice.receive(message("a", "nim", T0 + 3, ("sync",)), T0 + 4)
    alice.observe_sent(message("sync", "alice", T0 + 2, content=None), T0 + 5)
    assert alice.missing_ids() == ()
    assert [message_id for _, message_id in log_positions(alice)] == ["a"]


def test_sync_messages_are_bounded() -> None:
    channel = opened(None)
    for number in range(MAX_SYNCS + 5):
        channel.receive(message(f"s{number}", "nim", T0 + number, content=None), T0 + number)
    step = channel.receive(message("a", "nim", T0 + 9_000, ("s1", f"s{MAX_SYNCS + 4}")), T0 + 9_000)
    assert [event.waiting_for for event in of_type(step, Buffered)] == [("s1",)]
