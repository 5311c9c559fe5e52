"""Our participants and the simulated nim-sds peer beside nim-sds itself, built from its own sources.

`make test-nim` runs this where ``NIM`` is a Nim compiler (2.2.4 or newer) and ``NIM_SOURCES`` a folder with nim-sds
(read at 07491b2) and the packages of its ``nimble.lock`` that it imports (:data:`PACKAGES`), one subfolder each.
Skipped with a reason elsewhere.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.core.sds import Acknowledged, Delivered, MessageRefused, SdsChannel, SdsParameters, SdsStep
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsMessage, WireFamily, decode_sds_message, encode_sds_message
from tests.support.nim_sds import NimEvents, NimSds

HERE = Path(__file__).parent
NIM, SOURCES = os.environ.get("NIM", ""), os.environ.get("NIM_SOURCES", "")
PACKAGES = (
    *("results", "stew", "chronos", "chronicles", "libp2p", "faststreams", "serialization", "json_serialization"),
    *("testutils", "httputils", "unittest2", "bearssl"),
)
OWN = ("nim-sds/sds", "nim-sds", "nim-sds/tests")
T0 = 1_700_000_000_000
LONGEST_WAY_MS, LONGEST_ANSWER_MS = 1_500, 300_000
CHANNEL = "ch"
PARAMETERS = SdsParameters(before_observation=False).in_family(WireFamily.NIM)


def missing() -> str:
    """Why nim-sds cannot be built here; empty if it can."""
    if not NIM or not SOURCES:
        return "NIM (a Nim compiler) and NIM_SOURCES (the folder of nim-sds and its packages) are not set"
    if shutil.which(NIM) is None or shutil.which("gcc") is None:
        return f"{NIM} or gcc was not found"
    lacking = [name for name in (*OWN, *PACKAGES) if not Path(SOURCES, name).is_dir()]
    return f"{SOURCES} lacks {', '.join(lacking)}" if lacking else ""


pytestmark = [pytest.mark.nim, pytest.mark.skipif(bool(missing()), reason=missing())]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The peer, compiled."""
    place = tmp_path_factory.mktemp("nim")
    paths = [f"--path:{Path(SOURCES, name)}" for name in (*OWN, *PACKAGES)]
    options = ["--skipUserCfg", "--skipParentCfg", "--skipProjCfg", "--noNimblePath", "--cc:gcc", "--threads:on"]
    options += ["--mm:refc", "-d:release", "--opt:size", "--hints:off", "--warnings:off", "-d:chronicles_enabled=off"]
    target = ["--passL:-Wl,--wrap=clock_gettime", f"--nimcache:{place / 'cache'}", f"-o:{place / 'peer'}"]
    subprocess.run([NIM, "c", *options, *paths, *target, str(HERE / "nim_peer.nim")], check=True, timeout=1_800)
    return place / "peer"


class Library:
    """A process that runs nim-sds, with any number of participants and a clock that its commands set."""

    def __init__(self, program: Path) -> None:
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._now = T0
        self.ask("init", now=T0)

    def ask(self, op: str, now: int = T0, **arguments: Any) -> dict[str, Any]:
        """One command, one answer."""
        if now != self._now:
            passed, self._now = now - self._now, now
            self.ask("tick", now, ms=passed)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, "ch": CHANNEL, "now": now, **arguments}) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert "error" not in answer, (op, answer)
        return answer

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@pytest.fixture
def library(program: Path) -> Iterator[Library]:
    """nim-sds without participants."""
    library = Library(program)
    yield library
    library.close()


def decode(data: bytes) -> SdsMessage:
    message = decode_sds_message(data, WireFamily.NIM)
    assert not isinstance(message, Malformed), message
    return message


class NimPeer:
    """A participant of nim-sds and its simulation, which must do the same at every step."""

    def __init__(self, library: Library, name: str) -> None:
        self.name, self._library, self.simulated = name, library, NimSds(CHANNEL, name)
        self.ready: list[str] = []
        self.sent: set[str] = set()
        library.ask("create", p=name)

    def send(self, content: bytes, sds_id: str, now: int) -> bytes:
        self.simulated.events = NimEvents()
        answer = self._library.ask("send", now, p=self.name, payload=content.hex(), id=sds_id)
        data = bytes.fromhex(answer["wire"])
        assert data == encode_sds_message(self.simulated.wrap(content, sds_id, now), WireFamily.NIM)
        return data

    def receive(self, data: bytes, now: int) -> None:
        self.simulated.events = NimEvents()
        answer = self._library.ask("receive", now, p=self.name, wire=data.hex())
        self.simulated.unwrap(decode(data), now)
        happened = {kind: [each["id"] for each in answer["events"] if each["ev"] == kind] for kind in ("ready", "sent")}
        assert sorted(happened["ready"]) == sorted(self.simulated.events.ready)
        assert sorted(happened["sent"]) == sorted(self.simulated.events.sent)
        assert answer["brief"]["lamport"] == self.simulated.lamport
        self.ready += happened["ready"]
        self.sent.update(happened["sent"])

    def sweep(self, now: int) -> list[bytes]:
        answers = [bytes.fromhex(each["wire"]) for each in self._library.ask("sweepRepair", now, p=self.name)["events"]]
        simulated = [encode_sds_message(each, WireFamily.NIM) for each in self.simulated.sweep_repairs(now)]
        assert sorted(answers) == sorted(simulated)
        return answers


def opened(name: str | None, now: int = T0) -> SdsChannel:
    channel = SdsChannel(CHANNEL, name, PARAMETERS)
    channel.tick(now)
    return channel


def ids(step: SdsStep, kind: type[Delivered] | type[Acknowledged] | type[MessageRefused]) -> list[str]:
    return [event.message_id for event in step.events if isinstance(event, kind)]


def test_each_delivers_and_acknowledges_what_the_other_sends(library: Library) -> None:
    nim, us = NimPeer(library, "nim"), opened("us")
    (sent,) = us.send(b"hello", T0 + 1_000).outgoing
    nim.receive(sent.data, T0 + 1_000)
    assert nim.ready == [sent.message.message_id]
    reply = nim.send(b"hello too", "n1", T0 + 2_000)
    step = us.receive(decode(reply), T0 + 2_000, data=reply)
    assert (ids(step, Delivered), ids(step, Acknowledged)) == (["n1"], [sent.message.message_id])
    for outgoing in us.tick(T0 + 5_000).outgoing:
        nim.receive(outgoing.data, T0 + 5_000)
    assert nim.sent == {"n1"}


@pytest.mark.parametrize("seconds", [5, 310, 910])
@pytest.mark.parametrize("name", ["us", None], ids=["participant", "observer"])
def test_a_newcomer_takes_part_in_a_busy_channel(library: Library, seconds: int, name: str | None) -> None:
    nims = NimPeer(library, "nim0"), NimPeer(library, "nim1")
    newcomer, heard = None, []
    for number in range(seconds + 20):
        now = T0 + 1_000 * number
        said = nims[number % 2].send(b"x", f"m{number}", now)
        nims[1 - number % 2].receive(said, now)
        if number == seconds:
            newcomer = SdsChannel(CHANNEL, name, SdsParameters().in_family(WireFamily.NIM))
            newcomer.tick(now)
        if newcomer is not None:
            step = newcomer.receive(decode(said), now)
            assert ids(step, MessageRefused) == []
            heard += ids(step, Delivered)
    assert len(heard) == (20 if seconds > 10 else len(heard))


@pytest.mark.parametrize("seed", range(1, 1 + int(os.environ.get("SEEDS", "3"))))
def test_our_participants_deliver_all_they_can_know_of_in_a_lossy_network_of_both(library: Library, seed: int) -> None:
    """Two of each, a fifth of the envelopes lost. The application of nim-sds sends again what is not acknowledged, and
    talks now and then, because only content carries its repair requests. It also asks for what it holds and forgets
    requests after five minutes, so its own peers stay incomplete, as the simulated one does, although what they ask
    for is answered. It names the last ten that it logged, so a message that none of ours got may never be named."""
    network = Network(library, seed)
    for number in range(40):
        network.say(number)
        network.run(250 * network.draw.randrange(12))
    rounds = 0
    while rounds < 20 or (network.lacking() and rounds < 120):
        rounds += 1
        network.loss = 0.2 if rounds < 40 else 0.0
        if rounds % 2:
            network.say(40 + rounds)
        network.run(30_000)
    assert network.lacking() == {}
    assert network.refused == []
    assert network.false_acknowledgements == []
    assert network.asked
    assert network.unanswered() == []


class Network:
    """Two nim-sds participants, two of ours, and the envelopes on their way."""

    def __init__(self, library: Library, seed: int) -> None:
        self.draw, self.loss, self.now = random.Random(seed), 0.2, T0
        self.nims = {name: NimPeer(library, name) for name in ("nim0", "nim1")}
        self.ours = {name: opened(name) for name in ("us0", "us1")}
        self.heard: dict[str, set[str]] = {name: set() for name in (*self.nims, *self.ours)}
        self.authors: dict[str, str] = {}
        self.refused: list[str] = []
        self.false_acknowledgements: list[tuple[str, str]] = []
        self.asked: list[tuple[str, int]] = []
        """What nim-sds asked one of ours for that holds it, and when. What it sends again has the same requests."""
        self._arrived: set[tuple[str, str]] = set()
        self._knowable: set[str] = set()
        """What ours sent, got, or saw named."""
        self._published: dict[str, int] = {}
        self._unacknowledged: dict[str, tuple[str, bytes, int]] = {}
        self._way: list[tuple[int, int, str, bytes]] = []
        self._count = 0

    def say(self, number: int) -> None:
        name, content = self.draw.choice([*self.heard]), b"text %d" % number
        if name in self.nims:
            sds_id = f"{name}-{number}"
            data = self.nims[name].send(content, sds_id, self.now)
            self._unacknowledged[sds_id] = (name, data, self.now + 30_000)
            self.authors[sds_id] = name
            self._publish(name, data)
        else:
            step = self.ours[name].send(content, self.now)
            self.authors[step.outgoing[0].message.message_id] = name
            self._knowable.add(step.outgoing[0].message.message_id)
            self._take(name, step)

    def run(self, ms: int) -> None:
        end = self.now + ms
        while self.now < end:
            self.now += 250
            while self._way and self._way[0][0] <= self.now:
                _, _, name, data = heapq.heappop(self._way)
                message = decode(data)
                repeated = (name, message.message_id) in self._arrived
                self._arrived.add((name, message.message_id))
                if name in self.nims:
                    self.nims[name].receive(data, self.now)
                    self.heard[name].update(self.nims[name].ready)
                else:
                    self._knowable |= {message.message_id, *(entry.message_id for entry in message.causal_history)}
                    if message.sender_id in self.nims and not repeated:
                        held = self.heard[name] | {sds_id for sds_id, author in self.authors.items() if author == name}
                        requests = {entry.message_id for entry in message.repair_request}
                        self.asked += [(sds_id, self.now) for sds_id in requests & held]
                    self._take(name, self.ours[name].receive(message, self.now, data=data))
            for name, channel in self.ours.items():
                self._take(name, channel.tick(self.now))
            if self.now % 5_000 == 0:
                self._sweep()

    def lacking(self) -> dict[str, list[str]]:
        """Who of ours has not delivered what, though it could be known."""
        found = {
            name: [
                sds_id
                for sds_id, author in self.authors.items()
                if author != name and sds_id in self._knowable and sds_id not in self.heard[name]
            ]
            for name in self.ours
        }
        return {name: each for name, each in found.items() if each}

    def unanswered(self) -> list[tuple[str, int]]:
        """What was asked for and not published since, though the longest answer time is over. An answer that was on
        its way when the request arrived counts."""
        return [
            (sds_id, at)
            for sds_id, at in self.asked
            if at + LONGEST_ANSWER_MS < self.now and self._published[sds_id] < at - LONGEST_WAY_MS
        ]

    def _sweep(self) -> None:
        for name, nim in self.nims.items():
            for data in nim.sweep(self.now):
                self._publish(name, data)
        for sds_id, (name, data, due) in list(self._unacknowledged.items()):
            if sds_id in self.nims[name].sent:
                del self._unacknowledged[sds_id]
            elif due <= self.now:
                self._unacknowledged[sds_id] = (name, data, self.now + 30_000)
                self._publish(name, data)

    def _take(self, name: str, step: SdsStep) -> None:
        self.heard[name].update(ids(step, Delivered))
        self.refused += ids(step, MessageRefused)
        for event in step.events:
            if isinstance(event, Acknowledged) and (event.by, event.message_id) not in self._arrived:
                self.false_acknowledgements.append((event.by, event.message_id))
        for outgoing in step.outgoing:
            self._publish(name, outgoing.data)

    def _publish(self, sender: str, data: bytes) -> None:
        self._published[decode(data).message_id] = self.now
        for name in self.heard:
            if name != sender and self.draw.random() >= self.loss:
                self._count += 1
                heapq.heappush(self._way, (self.now + self.draw.randrange(20, LONGEST_WAY_MS), self._count, name, data))
