"""The missing segments of sets that are overdue."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from reliable_channel.config import Settings
from reliable_channel.config.channels import ChannelsSettings, ChannelTopic
from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.evidence.refetch import RefetchResult, refetch
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.transport.store.client import RetryPolicy, StoreClient
from reliable_channel.transport.store.model import StoreEntry, StorePage, StoreQuery
from tests.support.refetching import (
    PUBSUB,
    RECORD,
    START_S,
    STORED,
    TOPIC,
    MemoryNode,
    add_arrival,
    carrying,
    request,
    run,
)

WHOLE = contents_for(bytes(range(200)), SegmentationConfig(segment_size_bytes=128))
FIRST, SECOND = (carrying("talk", f"part {number}", content) for number, content in enumerate(WHOLE))


PAYLOAD_HASH = keccak256(bytes(range(200)))


def overdue(settings: Settings, after_s: int = 300, status: str = "overdue") -> None:
    """The set of ``WHOLE``, of which only the first segment arrived."""
    create_tables(settings.paths, (tables.INCOMPLETE_MESSAGES, tables.REASSEMBLED_MESSAGES))
    row = {"pubsub_topic": PUBSUB, "content_topic": TOPIC, "channel_id": "talk", "sender_id": "alice"}
    row |= {"entire_message_hash": PAYLOAD_HASH, "event_time": (START_S + after_s) * 10**6, "status": status}
    append_rows(settings.paths, tables.INCOMPLETE_MESSAGES, as_arrow([row], tables.INCOMPLETE_MESSAGES))


def of_sets(settings: Settings) -> list[tuple[str, str, int]]:
    rows = rows_of(open_table(settings.paths, tables.STORE_PRESENCE))
    return sorted((row["node"], row["outcome"], row["attempt"]) for row in rows if row["purpose"] == "set")


def test_the_missing_segments_of_an_overdue_set_are_asked_for_although_nobody_names_them(settings: Settings) -> None:
    overdue(settings)
    add_arrival(settings, "part 0")
    outcome, written = run(settings, MemoryNode("a", FIRST), MemoryNode("b", FIRST, SECOND))
    assert [entry.message for entry in written] == [SECOND], "what arrived completes nothing"
    assert outcome.requests == 1
    assert of_sets(settings) == [("a", "absent", 1), ("b", "present", 1)]
    assert run(settings, MemoryNode("b", FIRST, SECOND)) == (RefetchResult(), []), "a request is made once"
    overdue(settings, after_s=900)
    assert run(settings, MemoryNode("b", FIRST, SECOND))[0].requests == 1, "overdue again: another request"


def test_segments_that_arrived_leave_room_for_those_that_did_not(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's segments of the same payload, in any number, came from the network and are in the store too."""
    monkeypatch.setattr("reliable_channel.evidence.look_ups.MAX_OF_A_TOPIC", 3)
    strangers = [carrying("talk", f"stranger's {number}", WHOLE[0]) for number in range(5)]
    for number in range(5):
        add_arrival(settings, f"stranger's {number}")
    add_arrival(settings, "part 0")
    overdue(settings)
    _, written = run(settings, MemoryNode("a", *strangers, FIRST, SECOND))
    assert [entry.message for entry in written] == [SECOND]
    assert of_sets(settings) == [("a", "present", 1)]


def test_of_contents_encrypted_inside_sds_all_are_fetched_that_did_not_arrive(settings: Settings) -> None:
    topic = ChannelTopic(content_topic=TOPIC, decryption_key_files=("key.file",))
    settings = settings.model_copy(update={"channels": ChannelsSettings(content_topics=(topic,))})
    overdue(settings)
    add_arrival(settings, "part 0")
    first, second = (carrying("talk", f"part {number}", b"\x02" + bytes(60)) for number in range(2))
    assert [entry.message for entry in run(settings, MemoryNode("a", first, second))[1]] == [second]


def test_a_request_for_a_set_that_only_failed_is_repeated(settings: Settings) -> None:
    overdue(settings)
    assert run(settings, MemoryNode("a", broken=True))[1] == []
    assert [entry.message for entry in run(settings, MemoryNode("a", SECOND))[1]] == [SECOND]
    assert of_sets(settings) == [("a", "error", 1), ("a", "present", 1)]


@pytest.mark.parametrize("how", ["rebuilt", "given up"])
def test_a_set_that_has_ended_is_not_asked_for(settings: Settings, how: str) -> None:
    overdue(settings)
    if how == "given up":
        overdue(settings, after_s=3_600, status="given_up")
    else:
        row = {"pubsub_topic": PUBSUB, "content_topic": TOPIC, "channel_id": "talk", **RECORD}
        row["entire_message_hash"] = PAYLOAD_HASH
        row["event_time"] = (START_S + 420) * 10**6
        append_rows(settings.paths, tables.REASSEMBLED_MESSAGES, as_arrow([row], tables.REASSEMBLED_MESSAGES))
    node = MemoryNode("a", SECOND)
    assert run(settings, node)[0].requests == 0
    assert node.queries == 0


class Waiting(MemoryNode):
    """A node that answers only after something was written to Kafka."""

    def __init__(self, name: str, *messages: WakuMessage) -> None:
        super().__init__(name, *messages)
        self.written = threading.Event()

    def query(self, query: StoreQuery) -> StorePage:
        self.written.wait()
        return super().query(query)


@pytest.mark.parametrize("how", ["by hash", "by range", "set"])
def test_an_honest_answer_is_written_before_a_slow_node_has_ended(settings: Settings, how: str) -> None:
    if how == "set":
        overdue(settings)
    else:
        request(settings, "m1", STORED, hint=None if how == "by hash" else b"")
    slow, honest = Waiting("slow"), MemoryNode("honest", SECOND if how == "set" else STORED)
    written: list[StoreEntry] = []

    def write_back(entries: Sequence[StoreEntry]) -> None:
        written.extend(entries)
        if written:
            slow.written.set()

    refetch(settings, StoreClient([slow, honest], RetryPolicy(attempts=1), deadline_s=60), write_back)
    outcomes = {row["node"]: row["outcome"] for row in rows_of(open_table(settings.paths, tables.STORE_PRESENCE))}
    assert outcomes == {"honest": "present", "slow": "absent"}, "the slow node could answer: the other was written"
    assert len(written) == 1
