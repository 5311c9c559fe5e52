"""The SDS ids of a channel's sends, and those that a stranger may choose."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.errors import DamagedStore
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.steps import EnvelopeReceived, Report, SendRequested, Ticked
from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.hashing import compute_joined_id, sds_message_id, sha256
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.core.wire.segment import Dialect

NOW = 1_700_000_000_000


def machine() -> ChannelMachine:
    return ChannelMachine("talk", "alice", "/talk/1/c/proto", ReliableChannelConfig(), SegmentationConfig())


def test_a_new_send_has_an_id_with_separated_fields() -> None:
    assert machine().apply(SendRequested(NOW, b"hello")).send_id == sds_message_id("alice", NOW + 1, b"hello")


def test_a_journal_of_other_sends_is_refused() -> None:
    with pytest.raises(DamagedStore):
        machine().apply(SendRequested(NOW, b"hello", compute_joined_id("bob", NOW + 1, b"hello")))


SEGMENTS = SegmentationConfig(segment_size_bytes=64, max_message_bytes=1_024)
CONTENTS = {
    "bare": b"hello",
    "lookalike": b"\x0a\x20" + bytes(32) + b"\x10\x05\x18\x02",
    "whole": contents_for(b"hello", SEGMENTS)[0],
    "part": contents_for(b"x" * 100, SEGMENTS)[0],
    "too large": contents_for(b"x" * 5_000, replace(SEGMENTS, max_message_bytes=10_000))[0],
}
odd_ids = st.one_of(
    st.sampled_from(["\x00", "\x00\x00", "\x0064\x00", "\x005\x00hello7\x00bob", "\x00-1\x00x", "\x00\u0661\x00x"]),
    st.text("\x00 1a", min_size=1, max_size=8),
)


@given(
    st.lists(st.tuples(odd_ids, st.sampled_from([*CONTENTS]), st.booleans()), min_size=1, max_size=4),
    st.sampled_from([frozenset({Dialect.V01}), frozenset({Dialect.LIP243_LENGTH})]),
)
def test_ids_that_read_like_internal_keys_are_ids_like_others(
    sent: list[tuple[str, str, bool]], dialects: frozenset[Dialect]
) -> None:
    """In every kind of message: what is delivered, reported or given up has the id as it is on the wire."""
    config = replace(SEGMENTS, accepted_dialects=dialects)
    receiver = ChannelMachine("talk", "alice", "/talk/1/c/proto", ReliableChannelConfig(), config)
    ids = {sds_id for sds_id, _, _ in sent}
    effects = []
    for number, (sds_id, kind, ephemeral) in enumerate(sent):
        message = SdsMessage("bob", sds_id, "talk", None if ephemeral else NOW + number, (), None, (), CONTENTS[kind])
        data = encode_sds_message(message)
        effects += receiver.apply(EnvelopeReceived(NOW + number, data, sha256(data))).effects
    for day in (1, 2):
        effects += receiver.apply(Ticked(NOW + day * 86_400_000)).effects
    events = [each.event for each in effects if isinstance(each, Report)]
    named = [getattr(event, "sds_id", "") for event in events]
    named += [sds_id for event in events for sds_id in getattr(event, "sds_ids", ())]
    assert {each for each in named if each} <= ids
