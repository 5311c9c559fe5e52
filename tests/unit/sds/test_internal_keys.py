"""No id from the wire addresses an internal entry: keys of further sends and of unproven messages are no strings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.sds import Delivered, DependencyLost, SdsChannel, SdsParameters
from reliable_channel.core.sds.keys import SendKey, sds_id_of, sds_id_of_text, text_of
from reliable_channel.core.wire.hashing import js_message_id, sds_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage
from tests.unit.sds.sds_network import CHANNEL, T0, message, opened

FORMER_KEY = "\x00{length}\x00{id}{lamport}\x00{sender}"
"""The text under which further sends and unproven messages were once kept."""


def former_key(one: SdsMessage) -> str:
    return FORMER_KEY.format(
        length=len(one.message_id), id=one.message_id, lamport=one.lamport_timestamp, sender=one.sender_id
    )


def receive_all(channel: SdsChannel, messages: list[tuple[SdsMessage, bool]]) -> list[object]:
    events: list[object] = []
    for number, (one, verified) in enumerate(messages):
        events += channel.receive(one, T0 + 10 + number, id_verified=verified).events
    for minute in range(1, 20):
        events += channel.tick(T0 + minute * 60_000).events
    return events


@pytest.mark.parametrize("participant", ["bob", None], ids=["participant", "observer"])
def test_an_early_copy_that_names_its_own_key_ends_nothing(participant: str | None) -> None:
    """An unproven message used to wait under a text that a history could name: it then waited for itself for ever."""
    own = message("ab" * 32, "alice", T0 + 1, content=b"mine")
    early = message(own.message_id, "alice", T0 + 1, (former_key(own),), content=b"mine")
    later = message("cd" * 32, "alice", T0 + 2, (own.message_id,), content=b"next")
    channel = opened(participant, before_observation=False, timeout_for_lost_messages_ms=300_000)
    events = receive_all(channel, [(early, False), (own, False), (later, False)])
    delivered = [each.message_id for each in events if isinstance(each, Delivered)]
    assert delivered == [own.message_id, later.message_id]


@pytest.mark.parametrize("participant", ["bob", None], ids=["participant", "observer"])
def test_a_further_send_that_names_its_own_key_is_delivered(participant: str | None) -> None:
    content = b"ok"
    first = message(js_message_id(content), "carol", T0 + 1, content=content)
    own = message(first.message_id, "alice", T0 + 2, content=content)
    early = message(first.message_id, "alice", T0 + 2, (former_key(own),), content=content)
    channel = opened(participant, before_observation=False, timeout_for_lost_messages_ms=300_000)
    events = receive_all(channel, [(first, True), (early, True), (own, True)])
    assert [each.sender_id for each in events if isinstance(each, Delivered)] == ["carol", "alice"]


texts = st.sampled_from(["alice", "carol", "ab" * 32, js_message_id(b"ok"), "\x00", "1", ""])


@given(st.lists(st.tuples(texts, texts, st.integers(0, 3)), min_size=1, max_size=6), st.booleans())
def test_whatever_ids_histories_name_everything_honest_is_delivered(
    named: list[tuple[str, str, int]], proven: bool
) -> None:
    """Histories name ids built like any internal key, in any order; dependencies that never come age out."""
    ids = [f"\x00{len(sds_id)}\x00{sds_id}{T0 + offset}\x00{sender}" for sds_id, sender, offset in named]
    evil = [
        message(sds_message_id("carol", T0 + number, b"c"), "carol", T0 + number, (one,), content=b"c")
        for number, one in enumerate(ids)
    ]
    honest = [message("ab" * 32, "alice", T0 + 1, content=b"mine"), message("ef" * 32, "alice", T0 + 4, content=b"ok")]
    early = message("ab" * 32, "alice", T0 + 1, tuple(ids), content=b"mine")
    channel = SdsChannel(CHANNEL, None, SdsParameters(before_observation=False))
    messages = [*((one, proven) for one in evil), (early, False), *((one, False) for one in honest)]

    events = receive_all(channel, messages)
    delivered = {each.message_id for each in events if isinstance(each, Delivered)}
    assert {one.message_id for one in honest} <= delivered
    lost = {each.message_id for each in events if isinstance(each, DependencyLost)}
    assert lost <= {*ids}


def test_a_history_entry_keeps_its_text() -> None:
    assert HistoryEntry("\x001\x00a1\x00b").message_id == "\x001\x00a1\x00b"


short = st.text(alphabet="\x00a1", max_size=4)
keys = st.one_of(short, st.builds(SendKey, short, short, st.integers(0, 11)))


@given(keys, keys)
def test_the_texts_of_keys_are_as_different_as_the_keys_and_lead_to_the_id(one, other) -> None:
    assert (text_of(one) == text_of(other)) == (one == other)
    assert sds_id_of_text(text_of(one)) == sds_id_of(one)
