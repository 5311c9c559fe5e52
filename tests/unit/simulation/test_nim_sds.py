"""The simulated nim-sds peer does what the real library did in recorded runs: same bytes, same events, same state.

The runs were recorded with nim-sds 07491b2 (Nim 2.2.6) in a lossy network of its own and of our participants, with
restarts. Each step holds an input and the library's answer.
"""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsMessage, WireFamily, decode_sds_message, encode_sds_message
from tests.support.nim_sds import NimEvents, NimSds

RUNS = sorted((Path(__file__).parents[2] / "vectors" / "nim").glob("*.json.gz"))


def encode(message: SdsMessage) -> bytes:
    return encode_sds_message(message, WireFamily.NIM)


def decode(data: bytes) -> SdsMessage:
    message = decode_sds_message(data, WireFamily.NIM)
    assert not isinstance(message, Malformed), message
    return message


class Replay:
    """Gives the recorded inputs to simulated peers and compares every answer."""

    def __init__(self, run: dict[str, Any]) -> None:
        self.wires = {key: gzip.decompress(base64.b64decode(data)) for key, data in run["wires"].items()}
        self.now: int = run["startNow"]
        self.peers: dict[str, NimSds] = {}

    def play(self, step: dict[str, Any]) -> None:
        match step["op"]:
            case "tick":
                self.now += step["ms"]
            case "create":
                self.peers[step["p"]] = NimSds("ch", step["p"])
            case "restart":
                self.peers[step["p"]].restart()
            case "send" | "receive" | "sweepRepair" | "state":
                self.compare(step, self.peers[step["p"]])

    def compare(self, step: dict[str, Any], peer: NimSds) -> None:
        expected = step["expect"]
        peer.events = NimEvents()
        events: list[tuple[str, str | bytes]] = []
        match step["op"]:
            case "send":
                message = peer.wrap(bytes.fromhex(step["payload"]), step["id"], self.now)
                assert encode(message) == self.wires[expected["wire"]]
            case "receive":
                missing = peer.unwrap(decode(self.wires[step["wire"]]), self.now)
                assert [entry.message_id for entry in missing] == [each["id"] for each in expected["missing"]]
            case "sweepRepair":
                events = [("repair", encode(message)) for message in peer.sweep_repairs(self.now)]
            case "state":
                self.compare_state(expected["state"], peer)
                return
        events += [("ready", each) for each in peer.events.ready] + [("sent", each) for each in peer.events.sent]
        events += [("missing", each) for each, _ in peer.events.missing]
        answers = [(each["ev"], each.get("id") or self.wires[each["wire"]]) for each in expected["events"]]
        assert sorted(events, key=repr) == sorted(answers, key=repr)
        assert expected["brief"] == {
            "lamport": peer.lamport,
            "history": len(peer.history),
            "incoming": len(peer.incoming),
            "outgoing": len(peer.outgoing),
            "repairOut": len(peer.requests),
            "repairIn": len(peer.answers),
        }

    @staticmethod
    def compare_state(expected: dict[str, Any], peer: NimSds) -> None:
        assert expected["outgoing"] == peer.outgoing
        assert expected["incoming"] == sorted(peer.incoming)
        assert expected["repairOut"] == sorted(f"{each}@{due}" for each, (due, _) in peer.requests.items())
        assert expected["repairIn"] == sorted(f"{each}@{due}" for each, (due, _) in peer.answers.items())
        assert set(expected["history"]) == set(peer.history)


@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name.partition(".")[0])
def test_the_simulated_peer_answers_a_recorded_run_as_the_library_did(run: Path) -> None:
    recorded = json.loads(gzip.decompress(run.read_bytes()))
    replay = Replay(recorded)
    for number, step in enumerate(recorded["steps"]):
        try:
            replay.play(step)
        except AssertionError as error:
            raise AssertionError(f"step {number}, {step['op']} of {step.get('p')}: {error}") from error


def test_recorded_runs_are_there() -> None:
    assert [path.name for path in RUNS] == ["live11.json.gz", "live12.json.gz"]
