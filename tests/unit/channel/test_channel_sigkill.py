"""The same promises as in ``test_channel_crash``, once with a real process and real SIGKILLs."""

from __future__ import annotations

import contextlib
import queue
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TextIO

import pytest

from reliable_channel.channel import create_reliable_channel
from reliable_channel.core.sds import Retransmission
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, decode_waku_message, encode_waku_message
from reliable_channel.transport.clock import SystemClock
from reliable_channel.transport.memory import MemoryNetwork
from tests.unit.channel.channel_world import CHANNEL, TOPIC, Recorder, quick

PUBSUB = "/waku/2/rs/0/0"
LIVES = 8


class Child:
    """The killable participant, and what it said over all its lives."""

    def __init__(self, database: Path) -> None:
        self.database = database
        self.accepted: list[str] = []
        self.sends: set[str] = set()
        self.acknowledged: set[str] = set()
        self.received: list[tuple[int, bool, bytes]] = []
        self.envelopes: list[WakuMessage] = []
        self.sender_ids: set[str] = set()
        self.lines = 0
        self.process: subprocess.Popen[str] | None = None
        self.heard: queue.Queue[str] = queue.Queue()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.unit.channel.killable", str(self.database)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=Path(__file__).parents[3],
        )
        # A thread reads, so that neither side ever waits for the other's full pipe.
        self.heard = queue.Queue()
        self.reader = threading.Thread(target=self._read, args=(self.process.stdout, self.heard))
        self.reader.start()

    @staticmethod
    def _read(stdout: TextIO, heard: queue.Queue[str]) -> None:
        for line in stdout:
            heard.put(line)

    def say(self, line: str) -> None:
        assert self.process is not None and self.process.stdin is not None
        self.process.stdin.write(line + "\n")

    def hear(self, timeout_s: float) -> Iterator[WakuMessage]:
        """The envelopes it sent; everything else is noted. Waits for the first line, for so long."""
        while True:
            try:
                line = self.heard.get(timeout=timeout_s)
            except queue.Empty:
                return
            timeout_s = 0.001
            if line.endswith("\n"):  # else the kill cut it
                self.lines += 1
                yield from self._note(line)

    def _note(self, line: str) -> Iterator[WakuMessage]:
        kind, _, rest = line.strip().partition(" ")
        if kind == "READY":
            self.sender_ids.add(rest)
        elif kind == "A":
            send_id, _, text = rest.partition(" ")
            self.sends.add(send_id)
            self.accepted.append(text)
        elif kind == "D":
            self.acknowledged.add(rest)
        elif kind == "R":
            sequence, redelivered, payload = rest.split()
            self.received.append((int(sequence), redelivered == "1", bytes.fromhex(payload)))
        elif kind == "E":
            message = decode_waku_message(bytes.fromhex(rest))
            assert not isinstance(message, Malformed)
            self.envelopes.append(message)
            yield message

    def kill(self) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.kill()
        self.process.wait()
        self.reader.join()
        for _ in self.hear(0.001):
            pass  # what it said before it died counts
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    """A participant that does not outlive the test, however it ends."""
    participant = Child(tmp_path / "child.db")
    yield participant
    if participant.process is not None:
        participant.kill()


@pytest.mark.e2e
@pytest.mark.faults
def test_killed_at_random_points_a_participant_loses_repeats_and_reuses_nothing(child: Child) -> None:
    choose = random.Random(2026)
    network = MemoryNetwork(clock=SystemClock())
    node = network.node("peer")
    node.start()
    network.node("child").start()
    config = quick(
        sds={"acknowledgement_timeout_ms": 150, "retransmission": Retransmission.FIXED, "max_retransmissions": 1_000},
        query_on_connect=False,
    )
    peer = Recorder(create_reliable_channel(node, CHANNEL, TOPIC, "peer", config=config, threaded=False))
    to_child: list[str] = []

    def link(sender: str, _receiver: str, message: WakuMessage) -> tuple[float, ...]:
        if sender == "peer":
            to_child.append("M " + encode_waku_message(message).hex())
            return ()
        return (0.0,)

    network.link = link
    network.node("bystander").start()
    peer_sent: list[bytes] = []
    rounds = count()

    def heard() -> set[bytes]:
        return {payload for _, _, payload in child.received}

    def talk(until_lines: int | None) -> None:
        """Carry envelopes both ways until the child said that many lines, or until all is acknowledged."""
        for turn in range(3_000):
            for message in child.hear(0.02):
                network.publish("child", message, PUBSUB)
            peer.channel.step()
            network.pump()
            peer.channel.step()
            if until_lines is not None and child.lines >= until_lines:
                return
            if turn % 10 == 9:  # what is acknowledged is silent, and a silent child would say nothing more
                peer.channel.send(b"goes on %d" % next(rounds))
            if until_lines is None and turn % 10 == 0:
                arrived = set(child.accepted) <= {payload.decode() for payload in peer.payloads}
                if arrived and child.sends <= child.acknowledged and set(peer_sent) <= heard():
                    return
            # Every line makes the child run its timers.
            for line in (*to_child, "T"):
                child.say(line)
            to_child.clear()
        raise AssertionError("the conversation does not end")

    for life in range(LIVES):
        child.start()
        child.say("T")
        talk(child.lines + 1)
        for number in range(3):
            child.say(f"S child {life} {number}")
            peer_sent.append(b"peer %d %d" % (life, number))
            peer.channel.send(peer_sent[-1])
        talk(child.lines + choose.randint(1, 25))
        child.kill()
    child.start()
    talk(None)
    child.kill()
    peer.channel.close()

    assert len(child.sender_ids) == 1
    assert len(child.accepted) >= LIVES
    counts = Counter(peer.payloads)
    assert max(counts.values()) == 1
    assert {text.encode() for text in child.accepted} <= set(counts)
    numbers: dict[int, bytes] = {}
    for sequence, redelivered, payload in child.received:
        assert redelivered or sequence not in numbers, "told twice, and not as redelivered"
        assert numbers.setdefault(sequence, payload) == payload
    assert [*numbers] == sorted(numbers)
    assert len(set(numbers.values())) == len(numbers)
    assert len(child.received) - len(numbers) <= LIVES, "a kill repeated more than the callback it came in"
    by_id: dict[str, bytes] = {}
    by_clock: dict[int | None, str] = {}
    for envelope in child.envelopes:
        message = decode_sds_message(envelope.payload)
        assert not isinstance(message, Malformed)
        assert by_id.setdefault(message.message_id, envelope.payload) == envelope.payload
        assert by_clock.setdefault(message.lamport_timestamp, message.message_id) == message.message_id
