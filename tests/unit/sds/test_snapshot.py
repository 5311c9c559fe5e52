"""Snapshots: continue identically, stored blobs stay readable, anything else is refused with a reason."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.errors import LocalError
from reliable_channel.core.sds import Delivered, SdsChannel, SdsParameters
from reliable_channel.core.sds.snapshot import VERSION
from reliable_channel.core.wire._pb import sds_state_pb2 as pb
from tests.support.examples import examples
from tests.support.sds_inside import log_positions
from tests.unit.sds.sds_network import CHANNEL, T0, message, of_type, opened, small_config
from tests.unit.sds.sds_scripts import Action, act, actions, configs

BLOBS = Path(__file__).parent / "blobs"


@settings(max_examples=examples(300))
@given(participant=st.sampled_from([None, "alice"]), config=configs, script=actions, data=st.data())
def test_a_restored_channel_continues_identically(
    participant: str | None, config: SdsParameters, script: list[Action], data: st.DataObject
) -> None:
    cuts = data.draw(st.sets(st.integers(0, max(0, len(script) - 1))))
    straight = SdsChannel(CHANNEL, participant, config)
    restored = SdsChannel(CHANNEL, participant, config)
    now = T0
    for number, action in enumerate(script):
        now += action.wait
        if number in cuts:
            restored = SdsChannel.from_bytes(restored.to_bytes(), config)
        assert act(straight, action, now, number) == act(restored, action, now, number)
        assert straight.next_due() == restored.next_due()
    assert straight.tick(now + 200_000) == restored.tick(now + 200_000)
    assert straight.to_bytes() == restored.to_bytes()


@settings(max_examples=examples(200))
@given(participant=st.sampled_from([None, "alice"]), config=configs, script=actions, data=st.data())
def test_how_ticks_are_batched_does_not_matter(
    participant: str | None, config: SdsParameters, script: list[Action], data: st.DataObject
) -> None:
    """Before an input of time t all timers up to t run; whether at their times or all at t, gives the same."""
    late = SdsChannel(CHANNEL, participant, config)
    punctual = SdsChannel(CHANNEL, participant, config)
    now = T0
    for number, action in enumerate([*script, Action("tick", 400_000)]):
        now += action.wait
        expected = late.tick(now)
        outgoing, events = (), ()
        while (due := punctual.next_due()) is not None and due <= now:
            step = punctual.tick(due)
            outgoing, events = outgoing + step.outgoing, events + step.events
        step = punctual.tick(now)
        assert (outgoing + step.outgoing, events + step.events) == (expected.outgoing, expected.events)
        assert act(late, action, now, number) == act(punctual, action, now, number)
    assert late.to_bytes() == punctual.to_bytes()


@given(config=configs, script=actions)
def test_a_snapshot_is_the_same_after_a_round_trip(config: SdsParameters, script: list[Action]) -> None:
    channel = SdsChannel(CHANNEL, "alice", config)
    now = T0
    for number, action in enumerate(script):
        now += action.wait
        act(channel, action, now, number)
    blob = channel.to_bytes()
    assert SdsChannel.from_bytes(blob, config).to_bytes() == blob
    assert len(channel.to_bytes(with_kept=False)) <= len(blob)


@pytest.mark.parametrize("name", ["participant", "observer"])
def test_a_stored_snapshot_is_read(name: str) -> None:
    blob = BLOBS / f"v{VERSION}-{name}.bin"
    channel = SdsChannel.from_bytes(blob.read_bytes(), small_config())
    assert channel.participant_id == (None if name == "observer" else "alice")
    assert [message_id for _, message_id in log_positions(channel)][:2] == ["b1", "b2"]
    assert channel.missing_ids() == ("gone",)
    step = channel.receive(message("gone", lamport=T0 + 3), T0 + 50)
    assert [event.message_id for event in of_type(step, Delivered)] == ["gone", "b5"]


@given(st.binary(max_size=300))
def test_other_bytes_are_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(LocalError):
        SdsChannel.from_bytes(data)


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_another_version_is_refused_by_number(version: int) -> None:
    with pytest.raises(LocalError, match=f"version {version}"):
        SdsChannel.from_bytes(pb.SdsState(version=version).SerializeToString())


def test_a_snapshot_with_another_filter_size_is_refused() -> None:
    channel = opened("alice")
    channel.send(b"hello", T0)
    with pytest.raises(LocalError, match="another size"):
        SdsChannel.from_bytes(channel.to_bytes(), SdsParameters())


def test_a_log_whose_columns_differ_in_length_is_refused() -> None:
    state = pb.SdsState(version=VERSION, log_ids=["a"])
    with pytest.raises(LocalError, match="contradicts"):
        SdsChannel.from_bytes(state.SerializeToString())


def test_an_acknowledgement_by_an_unknown_participant_is_refused() -> None:
    columns = {"tracked_ids": "a", "tracked_senders": "b", "tracked_lamports": 1, "tracked_since": 1}
    columns |= {"tracked_acked": b"\x80", "tracked_certain": b""}
    state = pb.SdsState(version=VERSION, **{name: [value] for name, value in columns.items()})
    with pytest.raises(LocalError, match="contradicts"):
        SdsChannel.from_bytes(state.SerializeToString())


@pytest.mark.parametrize("after_ms", [0, 400_000], ids=["missing", "lost"])
def test_a_text_that_one_message_makes_stand_at_many_entries_is_stored_once(after_ms: int) -> None:
    """The naming sender's id and the id of its message stand at every missing id, and the first at every lost one."""
    sizes = []
    for long in ("", "x" * 1_000):
        observer = opened(None, before_observation=False)
        observer.receive(message("first", "carol", T0), T0)
        observer.receive(message("naming" + long, "mallory" + long, T0 + 1, [f"gone {n}" for n in range(500)]), T0)
        observer.tick(T0 + after_ms)
        assert SdsChannel.from_bytes(observer.to_bytes(), observer.config).to_bytes() == observer.to_bytes()
        sizes.append(len(observer.to_bytes()))
    assert sizes[1] - sizes[0] < 20_000


def test_a_snapshot_stays_bounded() -> None:
    """Ten times the bound of messages: the snapshot does not grow past what the bound allows."""
    config = small_config(max_log_entries=100, max_tracked=50, max_kept_bytes=10_000, max_remembered=50)
    channel = SdsChannel(CHANNEL, "alice", config)
    channel.tick(T0)
    sizes = []
    for number in range(1, 1_001):
        channel.receive(
            message(f"b{number}", lamport=T0 + number, history=(f"b{number - 1}",)[: number - 1]), T0 + number
        )
        if number % 100 == 0:
            sizes.append(len(channel.to_bytes()))
    assert max(sizes[1:]) < 2 * sizes[1]
