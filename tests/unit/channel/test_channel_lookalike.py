"""Bytes that were probably meant as a segment: participant and pipeline deliver them and say so, by one rule."""

from __future__ import annotations

import pytest

from reliable_channel.config import ChannelsSettings
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.core.wire.segment import Segment, encode_segment
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.pipeline.ingest.decode import RecordDecoder
from tests.unit.channel.channel_world import World

TOPIC = "/reliable-channel/1/talk/proto"
BROKEN = encode_segment(Segment(keccak256(b"whole"), 9, 3, None, False, b"the ninth of three"))


@pytest.mark.parametrize(("payload", "strange"), [(BROKEN, True), (b"hello", False), (b"\x0a\x02hi", False)])
def test_both_deliver_an_index_of_nine_among_three_and_tell_of_it(payload: bytes, strange: bool) -> None:
    world = World()
    alice, bob = world.join("alice"), world.join("bob")
    alice.channel.send(payload)
    world.run(1_000)
    assert bob.payloads == [payload]
    assert ("lookalike" in bob.problems()) is strange

    message = encode_sds_message(SdsMessage("alice", "m", "talk", 1_000, content=payload))
    record = encode_waku_message(WakuMessage(message, TOPIC, timestamp=1))
    row = RecordDecoder(ChannelsSettings()).decode(record, b"/waku/2/rs/1/0", b"relay", 10**15)
    assert (row.kind, row.segment_kind, row.content) == ("sds", "bare", payload)
    assert (row.disposition == "kept") is strange
