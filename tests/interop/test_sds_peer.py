"""Our SDS and the published npm package ``@waku/sds`` exchange messages and agree (LIP-109).

Needs Node and ``npm ci --prefix tests/interop``; skipped with a reason without them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliable_channel.core.sds import (
    Acknowledged,
    Delivered,
    MissingDependency,
    PossiblyAcknowledged,
    SdsChannel,
    SdsEvent,
    SdsParameters,
    SegmentAcknowledged,
)
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsMessage, decode_sds_message

HERE = Path(__file__).parent
NODE = shutil.which("node")
PACKAGE = HERE / "node_modules" / "@waku" / "sds" / "package.json"
CHANNEL = "interop"

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(NODE is None, reason="Node was not found: the published SDS peer needs it"),
    pytest.mark.skipif(not PACKAGE.exists(), reason="@waku/sds is not installed: npm ci --prefix tests/interop"),
]


class Peer:
    """A process that runs ``@waku/sds``."""

    def __init__(self) -> None:
        assert NODE is not None
        self._process = subprocess.Popen(
            [NODE, str(HERE / "sds_peer.mjs"), CHANNEL, "peer"],
            cwd=HERE,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, name: str, **arguments: str) -> dict:
        """One command, one answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"name": name, **arguments}) + "\n")
        self._process.stdin.flush()
        answer: dict = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


class Conversation:
    """Ours and theirs, and what ours has reported."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer
        # The peer counts dependencies as missing whatever their age.
        self.ours = SdsChannel(CHANNEL, "ours", SdsParameters(before_observation=False, sync_min_interval_ms=0))
        self.events: list[SdsEvent] = []
        self.ours.tick(self.now())

    @staticmethod
    def now() -> int:
        """The peer has no other clock."""
        return time.time_ns() // 1_000_000

    def we_send(self, content: bytes) -> tuple[str, bytes]:
        [outgoing] = self.ours.send(content, self.now()).outgoing
        return outgoing.message.message_id, outgoing.data

    def they_send(self, content: bytes) -> tuple[str, bytes]:
        answer = self.peer.ask("send", content=content.hex())
        return answer["id"], bytes.fromhex(answer["data"])

    def they_receive(self, data: bytes, kind: str = "ContentMessage") -> None:
        assert self.peer.ask("receive", data=data.hex())["kind"] == kind

    def we_receive(self, data: bytes) -> SdsMessage:
        message = decode_sds_message(data)
        assert not isinstance(message, Malformed)
        self.events.extend(self.ours.receive(message, self.now(), data=data).events)
        return message

    def theirs(self, name: str) -> list[str]:
        ids: list[str] = self.peer.ask("state")[name]
        return ids

    def of_type(self, *kinds: type[SdsEvent]) -> list[str]:
        return [event.message_id for event in self.events if isinstance(event, kinds)]  # type: ignore[attr-defined]


@pytest.fixture
def conversation() -> Iterator[Conversation]:
    peer = Peer()
    yield Conversation(peer)
    peer.close()


def test_both_deliver_what_the_other_sends(conversation: Conversation) -> None:
    ours, theirs = [], []
    for number in range(5):
        message_id, data = conversation.we_send(b"from us %d" % number)
        ours.append(message_id)
        conversation.they_receive(data)
        message_id, data = conversation.they_send(b"from them %d" % number)
        theirs.append(message_id)
        conversation.we_receive(data)
    assert conversation.theirs("delivered") == ours
    assert conversation.of_type(Delivered) == theirs


def test_both_take_a_causal_history_as_an_acknowledgement(conversation: Conversation) -> None:
    mine, data = conversation.we_send(b"mine")
    conversation.they_receive(data)
    yours, data = conversation.they_send(b"yours")
    conversation.we_receive(data)
    assert conversation.of_type(SegmentAcknowledged) == [mine]
    assert conversation.of_type(Acknowledged) == [mine]
    _, data = conversation.we_send(b"mine again")
    conversation.they_receive(data)
    assert conversation.theirs("acknowledged") == [yours]


def test_both_take_filters_as_possible_and_then_as_full_acknowledgements(conversation: Conversation) -> None:
    """Five messages are heard, two are named in a history of two; the filters hold all five."""
    ours = []
    for number in range(5):
        message_id, data = conversation.we_send(b"from us %d" % number)
        ours.append(message_id)
        conversation.they_receive(data)
    _, data = conversation.they_send(b"first answer")
    conversation.we_receive(data)
    # The others are in its causal past, but it was not heard before they were sent: one filter implies nothing yet.
    assert set(conversation.of_type(SegmentAcknowledged)) == set(ours[-2:])
    _, data = conversation.they_send(b"second answer")
    conversation.we_receive(data)
    assert set(conversation.of_type(SegmentAcknowledged)) == set(ours)

    theirs = []
    for number in range(5):
        message_id, data = conversation.they_send(b"from them %d" % number)
        theirs.append(message_id)
        conversation.we_receive(data)
    _, data = conversation.we_send(b"our answer")
    conversation.they_receive(data)
    assert set(conversation.theirs("acknowledged")) >= set(theirs[-2:])
    assert set(conversation.theirs("possible")) >= set(theirs[:3])
    _, data = conversation.we_send(b"our second answer")
    conversation.they_receive(data)
    assert set(conversation.theirs("acknowledged")) >= set(theirs)


def test_a_filter_alone_gives_the_same_possible_and_acknowledged_ids(conversation: Conversation) -> None:
    """The peer's log has newer messages than ours: its history names them, and only its filter holds ours."""
    ours = []
    for number in range(3):
        message_id, data = conversation.we_send(b"from us %d" % number)
        ours.append(message_id)
        conversation.they_receive(data)
    for number in range(4):
        conversation.they_send(b"never heard %d" % number)
    data = bytes.fromhex(conversation.peer.ask("sync")["data"])
    conversation.we_receive(data)
    assert conversation.of_type(PossiblyAcknowledged) == ours
    assert conversation.of_type(SegmentAcknowledged) == []
    conversation.we_receive(bytes.fromhex(conversation.peer.ask("sync")["data"]))
    assert conversation.of_type(SegmentAcknowledged) == ours


def test_sync_messages_are_understood_both_ways(conversation: Conversation) -> None:
    mine, data = conversation.we_send(b"mine")
    conversation.they_receive(data)
    sync = conversation.we_receive(bytes.fromhex(conversation.peer.ask("sync")["data"]))
    assert [entry.message_id for entry in sync.causal_history] == [mine]
    assert conversation.of_type(SegmentAcknowledged) == [mine]
    yours, data = conversation.they_send(b"yours")
    conversation.we_receive(data)
    [outgoing] = conversation.ours.send_sync(conversation.now()).outgoing
    conversation.they_receive(outgoing.data, "SyncMessage")
    assert conversation.theirs("acknowledged") == [yours]


def test_both_miss_the_same_message_and_deliver_in_causal_order(conversation: Conversation) -> None:
    lost, lost_data = conversation.we_send(b"lost on the way")
    after, data = conversation.we_send(b"after it")
    conversation.they_receive(data)
    assert conversation.theirs("missing") == [lost]
    assert conversation.theirs("delivered") == []
    conversation.they_receive(lost_data)
    conversation.peer.ask("sweep")
    assert conversation.theirs("delivered") == [lost, after]

    lost, lost_data = conversation.they_send(b"their lost one")
    after, data = conversation.they_send(b"their next one")
    conversation.we_receive(data)
    assert conversation.of_type(MissingDependency) == [lost]
    conversation.we_receive(lost_data)
    assert conversation.of_type(Delivered) == [lost, after]


def test_an_ephemeral_message_is_understood(conversation: Conversation) -> None:
    [outgoing] = conversation.ours.send_ephemeral(b"typing", conversation.now()).outgoing
    conversation.they_receive(outgoing.data, "EphemeralMessage")
    assert conversation.theirs("delivered") == []
