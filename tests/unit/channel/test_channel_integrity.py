"""What strangers send under the ids of honest segments keeps no message from a participant's application."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.events import MessageReceived
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.snapshot import restore_snapshot, write_snapshot
from reliable_channel.channel.steps import EnvelopeReceived, Report, Ticked
from reliable_channel.core.sds import SdsChannel, SdsParameters
from reliable_channel.core.segmentation import Segment, SegmentationConfig, split
from reliable_channel.core.wire.hashing import keccak256, sds_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, encode_sds_message
from reliable_channel.core.wire.segment import encode_segment

NOW = 1_700_000_000_000
CONFIG = SegmentationConfig(segment_size_bytes=64, max_open_sets_per_sender=4)
PAYLOAD = bytes(range(150))


def alices() -> list[SdsMessage]:
    """The three segments of one message of Alice's."""
    alice = SdsChannel("talk", "alice", SdsParameters(repair=False))
    contents = [encode_segment(each) for each in split(PAYLOAD, CONFIG)]
    return [sent.message for sent in alice.send(contents, NOW, required=3).outgoing]


def false_segment(number: int, sender: str, **changes: object) -> SdsMessage:
    """One of three segments of a message that never becomes whole."""
    content = encode_segment(Segment(keccak256(b"%d" % number), 0, 3, None, False, b"false"))
    lamport = NOW + number
    made = SdsMessage(sender, sds_message_id(sender, lamport, content), "talk", lamport, content=content)
    return replace(made, **changes)  # type: ignore[arg-type]


def delivered(*messages: SdsMessage, stored: bool = False) -> list[tuple[str, bytes]]:
    """Sender and payload of what bob's application gets; ``stored``: the state goes through its bytes every time."""
    machine = begun()
    machine.apply(Ticked(NOW - 1_000))
    found: list[tuple[str, bytes]] = []
    for at, each in enumerate(messages):
        effects = machine.apply(EnvelopeReceived(NOW + at, encode_sds_message(each), bytes(32))).effects
        events = [e.event for e in effects if isinstance(e, Report)]
        found += [(e.sender_id, e.message) for e in events if isinstance(e, MessageReceived)]
        if stored:
            data, machine = write_snapshot(machine), begun()
            restore_snapshot(machine, data)
    return found


def begun() -> ChannelMachine:
    return ChannelMachine("talk", "bob", "/talk/1/c/proto", ReliableChannelConfig(), CONFIG)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("sender", ["mallory", "alice"])
@pytest.mark.parametrize("at", range(3))
def test_a_set_under_the_id_of_an_honest_segment_that_is_given_up_takes_nothing_along(
    sender: str, at: int, stored: bool
) -> None:
    honest = alices()
    under_it = false_segment(0, sender, message_id=honest[at].message_id)
    others = [false_segment(number, sender) for number in range(1, 5 if sender == "mallory" else 4)]
    found = delivered(under_it, *honest[: at + 1], *others, *honest[at + 1 :], stored=stored)
    assert found == [("alice", PAYLOAD)]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("sender", ["mallory", "alice"])
@pytest.mark.parametrize("whole", [True, False], ids=["bare", "two segments"])
def test_what_waits_under_the_id_of_an_honest_segment_is_not_delivered_with_it(
    sender: str, whole: bool, stored: bool
) -> None:
    """A stranger's message that waits for what never comes loses its id to the honest one."""
    honest = alices()
    waits = {"message_id": honest[0].message_id, "causal_history": (HistoryEntry("never"),)}
    if whole:
        strangers = [false_segment(0, sender, content=b"pay mallory", **waits)]
    else:
        text = bytes(100)
        one, two = (encode_segment(each) for each in split(text, CONFIG))
        strangers = [false_segment(0, sender, content=one, **waits), false_segment(1, sender, content=two)]
    assert delivered(*strangers, *honest, stored=stored) == [("alice", PAYLOAD)]
