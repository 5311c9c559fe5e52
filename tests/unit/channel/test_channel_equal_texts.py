"""An application hears each of several equal texts once, although SDS has one id for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.events import ChannelProblem, MessageReceived
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.steps import Effect, EnvelopeReceived, Report, Ticked
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.hashing import content_message_id, js_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, encode_sds_message

NOW = 1_700_000_000_000
OK = js_message_id(b"ok")


def make_envelope(
    sender: str,
    lamport: int,
    history: tuple[str, ...] = (),
    content: bytes = b"ok",
    make_id: Callable[[bytes], str] = js_message_id,
) -> EnvelopeReceived:
    entries = tuple(HistoryEntry(name) for name in history)
    message = SdsMessage(sender, make_id(content), "talk", lamport, entries, content=content)
    return EnvelopeReceived(NOW + 100, encode_sds_message(message), bytes(32))


def receive_all(inputs: list[EnvelopeReceived]) -> tuple[list[tuple[str, int | None, str]], list[Effect]]:
    """Sender, Lamport timestamp and id of everything delivered; and the problems."""
    machine = ChannelMachine("talk", "alice", "/talk/1/c/proto", ReliableChannelConfig(), SegmentationConfig())
    machine.apply(Ticked(NOW - 1_000))
    effects = [effect for each in inputs for effect in machine.apply(each).effects]
    found = [e.event for e in effects if isinstance(e, Report) and isinstance(e.event, MessageReceived)]
    problems = [e for e in effects if isinstance(e, Report) and isinstance(e.event, ChannelProblem)]
    return [(each.sender_id, each.lamport_timestamp, each.sds_id) for each in found], problems


@pytest.mark.parametrize("make_id", [js_message_id, content_message_id], ids=["js-waku", "LIP-173"])
def test_five_copies_each_of_four_equal_texts_are_four_messages(make_id: Callable[[bytes], str]) -> None:
    sends = [(name, NOW + n) for n, name in enumerate(("bob", "carol", "bob", "bob"))]
    messages, problems = receive_all([make_envelope(*send, make_id=make_id) for send in sends] * 5)
    assert messages == [(*send, make_id(b"ok")) for send in sends]
    assert problems == []


@pytest.mark.parametrize("waits", ["bob", "carol"])
def test_a_text_that_waits_and_an_equal_one_that_does_not_are_each_delivered(waits: str) -> None:
    question = make_envelope("dave", NOW, content=b"really?")
    histories = {waits: (js_message_id(b"really?"),)}
    inputs = [make_envelope(name, NOW + n, histories.get(name, ())) for n, name in enumerate(("bob", "carol"), start=1)]
    messages, _ = receive_all([*inputs, question])
    other = "carol" if waits == "bob" else "bob"
    assert [sender for sender, _, _ in messages] == [other, "dave", waits]
    assert {sds_id for sender, _, sds_id in messages if sender != "dave"} == {OK}


@given(
    st.lists(
        st.tuples(st.sampled_from(["bob", "carol"]), st.integers(1, 4), st.booleans()).map(
            lambda drawn: make_envelope(drawn[0], NOW + drawn[1], (js_message_id(b"why"),) if drawn[1] % 2 else ())
        ),
        max_size=12,
    )
)
def test_every_send_is_delivered_once_in_any_order(inputs: list[EnvelopeReceived]) -> None:
    messages, _ = receive_all([*inputs, make_envelope("dave", NOW, content=b"why")])
    assert max(Counter(messages).values()) == 1
    assert len(messages) == len({each.data for each in inputs}) + 1
