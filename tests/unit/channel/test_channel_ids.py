"""A journal of an earlier version, which made SDS ids in another form, is replayed to the sends it recorded."""

import pytest

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.errors import DamagedStore
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.steps import SendRequested
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.hashing import joined_message_id, sds_message_id

NOW = 1_700_000_000_000


def machine() -> ChannelMachine:
    return ChannelMachine("talk", "alice", "/talk/1/c/proto", ReliableChannelConfig(), SegmentationConfig())


def test_a_send_of_an_earlier_version_keeps_its_id_when_its_journal_is_replayed() -> None:
    recorded = joined_message_id("alice", NOW + 1, b"hello")
    assert machine().apply(SendRequested(NOW, b"hello", recorded)).send_id == recorded


def test_a_new_send_has_an_id_with_separated_fields() -> None:
    assert machine().apply(SendRequested(NOW, b"hello")).send_id == sds_message_id("alice", NOW + 1, b"hello")


def test_a_journal_of_other_sends_is_refused() -> None:
    with pytest.raises(DamagedStore):
        machine().apply(SendRequested(NOW, b"hello", joined_message_id("bob", NOW + 1, b"hello")))
