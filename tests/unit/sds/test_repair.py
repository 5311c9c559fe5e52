"""SDS-R: the published timing, requests, answers, and who keeps quiet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reliable_channel.core.sds import (
    Delivered,
    OutgoingReason,
    RefetchDue,
    RepairCancelled,
    RepairRequested,
    RepairRequestSeen,
    RepairScheduled,
    RepairSent,
    SdsChannel,
)
from reliable_channel.core.sds.repair import in_response_group, repair_hash, request_offset, response_offset
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, encode_sds_message
from tests.unit.sds.sds_network import T0, Network, message, of_type, opened, small_config

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "sds_wire.json").read_text())["repair"]
LONG = 10_000_000


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["messageId"][:8])
def test_the_timing_is_that_of_js_waku(vector: dict) -> None:
    me, sender, message_id = vector["participantId"], vector["senderId"], vector["messageId"]
    config = {"tMin": 30_000, "tMax": 120_000, "numResponseGroups": 1, **vector["config"]}
    assert repair_hash(me) == int(vector["hashParticipant"])
    assert repair_hash(me + message_id) == int(vector["hashParticipantMessage"])
    assert request_offset(me, message_id, config["tMin"], config["tMax"]) == vector["tReqOffset"]
    assert response_offset(me, sender, message_id, config["tMax"]) == vector["tRespOffset"]
    assert in_response_group(me, sender, message_id, config["numResponseGroups"]) is vector["inResponseGroup"]


def asking(message_id: str, *wanted: str, sender: str = "carol", lamport: int = T0 + 50) -> SdsMessage:
    asked = message(message_id, sender, lamport, content=None)
    return replace(asked, repair_request=tuple(HistoryEntry(one, None, "bob") for one in wanted))


def missing_five(**settings: object) -> SdsChannel:
    alice = opened(sync_min_interval_ms=0, **settings)
    names = tuple(f"gone {number}" for number in range(5))
    alice.receive(message("b9", lamport=T0 + 9, history=names), T0 + 9)
    return alice


def test_at_most_three_requests_a_message_the_lowest_t_req_first() -> None:
    alice = missing_five()
    order = sorted(alice.missing_ids(), key=lambda one: request_offset("alice", one, 30_000, 120_000))
    assert alice.send(b"too early", T0 + 20_000).outgoing[0].message.repair_request == ()
    step = alice.send([b"one", b"two"], T0 + 9 + 120_000)
    asked = [[entry.message_id for entry in outgoing.message.repair_request] for outgoing in step.outgoing]
    assert asked == [order[:3], order[3:]]
    assert [event.message_id for event in of_type(step, RepairRequested)] == order
    repeated = T0 + 9 + 120_000 + 30_000
    assert asked_at(alice, repeated - 1) == []
    assert sorted(asked_at(alice, repeated)) == sorted(order), "asked is not answered"


def test_what_is_cancelled_and_named_again_in_one_batch_takes_one_place_among_the_requests() -> None:
    alice = missing_five()
    every = alice.missing_ids()
    alice.receive(asking("c1", *every), T0 + 9)
    alice.receive(message("b10", lamport=T0 + 10, history=every), T0 + 9)
    step = alice.send([b"one", b"two"], T0 + 9 + 120_000)
    asked = [entry.message_id for outgoing in step.outgoing for entry in outgoing.message.repair_request]
    assert sorted(asked) == sorted(every)


def test_a_request_of_another_removes_ones_own_until_the_message_is_named_again() -> None:
    alice = missing_five()
    step = alice.receive(asking("c1", "gone 0", "unheard of"), T0 + 29_000)
    assert [(event.message_id, event.cause) for event in of_type(step, RepairCancelled)] == [("gone 0", "requested")]
    assert [(event.message_id, event.by, event.have) for event in of_type(step, RepairRequestSeen)] == [
        ("gone 0", "carol", False),
        ("unheard of", "carol", False),
    ]
    assert "gone 0" not in asked_at(alice, T0 + LONG)
    named_again = T0 + 400_000
    alice.receive(replace(asking("b10", "other"), causal_history=(HistoryEntry("gone 0"),)), named_again)
    alice.receive(message("b11", lamport=T0 + 11, history=("b9",)), named_again + 10_000)  # puts it off no more
    offset = request_offset("alice", "gone 0", 30_000, 120_000)
    assert "gone 0" not in asked_at(alice, named_again + offset - 1)
    assert "gone 0" in asked_at(alice, named_again + offset)


def asked_at(channel: SdsChannel, at: int) -> list[str]:
    """What the next messages of a channel would ask for."""
    fresh = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    sent = fresh.send([b"1", b"2"], at).outgoing
    return [entry.message_id for outgoing in sent for entry in outgoing.message.repair_request]


def test_ids_that_a_stranger_invents_delay_no_request_for_what_others_name() -> None:
    """A message carries three requests. Behind a thousand ids that never existed, one that was lost on its way was not
    asked for within the hour after which it counts as lost."""
    alice = opened(sync_min_interval_ms=0)
    alice.receive(message("m1", "mallory", T0 + 1, tuple(f"never {number}" for number in range(900))), T0 + 1)
    alice.receive(message("b2", "bob", T0 + 2, ("gone", "gone as well")), T0 + 2)
    alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    asked = [
        entry.message_id
        for number in range(2)
        for entry in alice.send(b"%d" % number, T0 + 200_000 + number).outgoing[0].message.repair_request
    ]
    assert {"gone", "gone as well"} < {*asked}
    assert len({*asked}) == 6, "and the others in their order"


def test_what_is_found_is_not_asked_for() -> None:
    alice = missing_five()
    for number in range(5):
        alice.receive(message(f"gone {number}", lamport=T0 + 1 + number), T0 + 10)
    assert alice.send(b"x", T0 + 500_000).outgoing[0].message.repair_request == ()


def test_what_is_lost_is_not_asked_for() -> None:
    alice = missing_five(timeout_for_lost_messages_ms=60_000)
    alice.tick(T0 + 100_000)
    assert alice.send(b"x", T0 + 500_000).outgoing[0].message.repair_request == ()


def test_an_answer_is_the_original_bytes_at_t_resp() -> None:
    alice = opened(sync_min_interval_ms=0)
    wanted = message("b1")
    original = encode_sds_message(wanted) + b"\xf8\x07\x01"
    alice.receive(wanted, T0 + 1, data=original)
    step = alice.receive(asking("c1", "b1"), T0 + 2)
    due = T0 + 2 + response_offset("alice", "bob", "b1", 120_000)
    assert [event.due for event in of_type(step, RepairScheduled)] == [due]
    assert of_type(alice.receive(asking("c2", "b1"), T0 + 3), RepairScheduled) == []
    assert alice.next_due() == due
    step = alice.tick(due)
    assert [(outgoing.data, outgoing.reason) for outgoing in step.outgoing] == [(original, OutgoingReason.REPAIR)]
    assert [event.message_id for event in of_type(step, RepairSent)] == ["b1"]


def test_without_the_original_bytes_the_message_is_encoded_again() -> None:
    alice = opened(sync_min_interval_ms=0)
    alice.receive(message("b1"), T0 + 1)
    alice.receive(asking("c1", "b1"), T0 + 2)
    assert [outgoing.data for outgoing in alice.tick(T0 + LONG).outgoing] == [encode_sds_message(message("b1"))]


def test_an_answer_of_another_cancels_ones_own() -> None:
    alice = opened(sync_min_interval_ms=0)
    alice.receive(message("b1"), T0 + 1)
    alice.receive(asking("c1", "b1"), T0 + 2)
    step = alice.receive(message("b1"), T0 + 3)
    assert [(event.message_id, event.cause) for event in of_type(step, RepairCancelled)] == [("b1", "answered")]
    assert alice.tick(T0 + LONG).outgoing == ()


def test_what_waits_here_is_answered_too() -> None:
    """Nobody else had it: who asked for it gave it up after an hour, as what it waited for was irretrievable."""
    network = Network(("alice", "bob"))
    held = message("c2", "carol", T0 + 20, history=("c1",))
    network.channels["alice"].receive(held, T0 + 20)
    named = message("c3", "carol", T0 + 30, history=("c2",))
    network.channels["bob"].receive(named, T0 + 30)
    network.run(300_000)
    assert "c2" not in network.channels["bob"].missing_ids()
    [answer] = [outgoing.data for outgoing in network.sent if outgoing.reason is OutgoingReason.REPAIR]
    assert answer == encode_sds_message(held)


@pytest.mark.parametrize("restarts", [False, True])
def test_what_parity_rebuilt_is_answered_only_once_the_original_bytes_are_here(restarts: bool) -> None:
    """Rebuilt, it has no history: as an answer it released the copies of it that waited for their past elsewhere."""
    alice = opened(sync_min_interval_ms=0)
    alice.receive(message("b2", lamport=T0 + 2, history=("b1",)), T0 + 2)
    alice.receive(message("b1", lamport=T0 + 1), T0 + 3, repaired=True, id_verified=True)
    assert of_type(alice.receive(asking("c1", "b1"), T0 + 4), RepairScheduled) == []
    original = message("b1", lamport=T0 + 1, history=("b0",))
    alice.receive(original, T0 + 5, data=encode_sds_message(original), id_verified=True)
    if restarts:
        alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    (due,) = [event.due for event in of_type(alice.receive(asking("c2", "b1"), T0 + 6), RepairScheduled)]
    (answer,) = [out for out in alice.tick(due).outgoing if out.reason is OutgoingReason.REPAIR]
    assert answer.data == encode_sds_message(original)


def test_what_a_message_asks_for_that_parity_rebuilt_is_answered() -> None:
    """Rebuilt, it asks for nothing, and as it came it counted as a copy: its sender asked in vain for an hour."""
    alice = opened(sync_min_interval_ms=0)
    alice.receive(message("b0"), T0 + 1)
    alice.receive(message("c2", "carol", T0 + 3, history=("c1",)), T0 + 3)
    alice.receive(message("c1", "carol", T0 + 2), T0 + 4, repaired=True, id_verified=True)
    original = replace(asking("c1", "b0", lamport=T0 + 2), content=b"content", causal_history=(HistoryEntry("b0"),))
    step = alice.receive(original, T0 + 5, id_verified=True)
    assert [event.message_id for event in of_type(step, RepairScheduled)] == ["b0"]
    assert of_type(alice.receive(original, T0 + 6, id_verified=True), RepairRequestSeen) == []


def test_an_own_message_is_answered_at_once() -> None:
    alice = opened(sync_min_interval_ms=0)
    mine = alice.send(b"mine", T0).outgoing[0]
    step = alice.receive(asking("c1", mine.message.message_id), T0 + 2)
    assert [event.due for event in of_type(step, RepairScheduled)] == [T0 + 2]
    assert [outgoing.data for outgoing in alice.tick(T0 + 2).outgoing] == [mine.data]


def test_a_stranger_who_asks_for_everything_again_and_again_gets_so_many_answers() -> None:
    alice = opened(sync_min_interval_ms=0, max_retransmissions=0)
    mine = [alice.send(b"%d" % number, T0).outgoing[0].message.message_id for number in range(300)]
    window = alice.config.repair_t_max_ms
    answers: list[int] = []
    for second in range(2 * window // 1_000):
        now = T0 + second * 1_000
        step = alice.receive(asking(f"m{second}", *mine, sender="mallory", lamport=now), now)
        answers += [event.at for event in of_type(step, RepairSent)]
        answers += [event.at for event in of_type(alice.tick(now + 500), RepairSent)]
        if second % 10 == 0:
            alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    assert alice.config.max_repair_answers == 100
    assert sum(at < T0 + window for at in answers) == 100
    assert len(answers) == 200


@pytest.mark.parametrize("restarts", [False, True])
def test_a_stranger_who_asks_for_everything_takes_no_answer_from_others(restarts: bool) -> None:
    alice = opened(sync_min_interval_ms=0, max_retransmissions=0)
    mine = [alice.send(b"%d" % number, T0).outgoing[0].message.message_id for number in range(300)]
    greedy = alice.receive(asking("m", *mine, sender="mallory"), T0 + 1)
    assert len(of_type(greedy, RepairScheduled)) == 100
    alice.tick(T0 + 1)
    if restarts:
        alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    assert len(of_type(alice.receive(asking("c", *mine[:60], sender="carol"), T0 + 2), RepairScheduled)) == 50
    assert of_type(alice.receive(asking("m2", *mine[150:], sender="mallory"), T0 + 3), RepairScheduled) == []


def test_many_who_ask_get_twice_as_many_answers_at_most() -> None:
    alice = opened(sync_min_interval_ms=0, max_retransmissions=0)
    mine = [alice.send(b"%d" % number, T0).outgoing[0].message.message_id for number in range(300)]
    asked = [alice.receive(asking(f"m{n}", mine[n], sender=f"mallory {n}"), T0 + 1) for n in range(300)]
    assert sum(len(of_type(step, RepairScheduled)) for step in asked) == 200


def test_outside_the_response_group_one_keeps_quiet() -> None:
    groups = 8
    alice = opened(sync_min_interval_ms=0, repair_response_groups=groups)
    scheduled = set()
    for number in range(1, 40):
        message_id = f"b{number}"
        alice.receive(message(message_id, lamport=T0 + number), T0 + 1)
        step = alice.receive(asking(f"c{number}", message_id), T0 + 2)
        scheduled |= {event.message_id for event in of_type(step, RepairScheduled)}
    expected = {f"b{n}" for n in range(1, 40) if in_response_group("alice", "bob", f"b{n}", groups)}
    assert scheduled == expected
    assert 0 < len(expected) < 39


def test_requests_that_a_stranger_cancels_again_and_again_take_no_more_memory() -> None:
    alice = missing_five()
    repair = alice._state.repair
    assert repair is not None
    for number in range(200):
        now = T0 + 10 + number
        alice.receive(asking(f"ask {number}", *alice.missing_ids(), lamport=now), now)
        assert repair.requests == {}
        alice.receive(message(f"wait {number}", "carol", now, history=("gone 0",)), now)
        assert len(repair.requests) == 5
    assert len(repair._request_timers) < 200
    assert len(alice.send(b"due", T0 + 120_500).outgoing[0].message.repair_request) == 3


def test_bytes_past_the_bound_are_not_kept_and_not_answered() -> None:
    alice = opened(sync_min_interval_ms=0, max_kept_bytes=2_000)
    for number in (1, 2, 3):
        alice.receive(message(f"b{number}", lamport=T0 + number, content=bytes([number]) * 900), T0 + 1)
    alice.receive(message("big", lamport=T0 + 9, content=bytes([1]) * 3_000), T0 + 9)
    step = alice.receive(asking("c1", "b1", "b3", "big"), T0 + 10)
    assert [event.message_id for event in of_type(step, RepairScheduled)] == ["b3"]
    assert [event.have for event in of_type(step, RepairRequestSeen)] == [True, True, True]


def test_what_waited_long_is_kept_from_its_delivery_on() -> None:
    """Histories name it from then on, so that others ask for it; it was dropped before what was delivered meanwhile."""
    alice = opened(sync_min_interval_ms=0, max_kept_bytes=4_500)
    alice.receive(message("b5", lamport=T0 + 5, content=bytes([5]) * 900, history=("b4",)), T0 + 5)
    alice.receive(message("b3", lamport=T0 + 3, content=bytes([3]) * 900), T0 + 6)
    step = alice.receive(message("b4", lamport=T0 + 4, content=bytes([4]) * 900), T0 + 7)
    assert [event.message_id for event in of_type(step, Delivered)] == ["b4", "b5"]
    alice.receive(message("b6", lamport=T0 + 6, content=bytes([6]) * 900), T0 + 8)
    alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    step = alice.receive(asking("c1", "b3", "b4", "b5", "b6"), T0 + 10)
    assert [event.message_id for event in of_type(step, RepairScheduled)] == ["b4", "b5", "b6"]


@pytest.mark.parametrize("restarts", [False, True])
def test_others_messages_make_room_before_own_ones_until_these_take_half_of_it(restarts: bool) -> None:
    """An own message was dropped for the 220 messages that came after it; if it was lost on its way, nobody had it."""
    alice = opened(sync_min_interval_ms=0, max_kept_bytes=8_000)
    own = [alice.send(bytes([number]) * 900, T0 + number).outgoing[0].message.message_id for number in (1, 2)]
    for number in range(3, 20):
        if restarts:
            alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
        alice.receive(message(f"b{number}", lamport=T0 + number, content=bytes([number]) * 900), T0 + number)
    step = alice.receive(asking("c1", own[0], "b3", "b18", "b19"), T0 + 20)
    assert [event.message_id for event in of_type(step, RepairScheduled)] == [own[0], "b18", "b19"]
    for number in range(20, 30):
        own.append(alice.send(bytes([number]) * 900, T0 + number).outgoing[0].message.message_id)
    step = alice.receive(asking("c2", own[2], own[-1], "b17", "b19", lamport=T0 + 60), T0 + 30)
    assert [event.message_id for event in of_type(step, RepairScheduled)] == [own[-1]]


@pytest.mark.parametrize(("asked", "answered"), [(1, 1), (3, 3), (8, 4)])
def test_what_is_to_be_answered_makes_room_after_what_is_as_old_and_before_what_is_new(
    asked: int, answered: int
) -> None:
    """A planned answer was dropped, without a word, when 4 MiB came before T_resp."""
    alice = opened(sync_min_interval_ms=0, max_kept_bytes=12_000)
    for number in range(1, 9):
        alice.receive(message(f"b{number}", lamport=T0 + number, content=bytes([number]) * 900), T0 + number)
    old = [f"b{number}" for number in range(1, asked + 1)]
    step = alice.receive(asking("c1", *old), T0 + 10)
    assert [event.message_id for event in of_type(step, RepairScheduled)] == old
    for number in range(9, 13):
        alice.receive(message(f"b{number}", lamport=T0 + number, content=bytes([number]) * 900), T0 + 11)
    alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    events = alice.tick(T0 + LONG).events
    sent = {event.message_id for event in events if isinstance(event, RepairSent)}
    dropped = {event.message_id for event in events if isinstance(event, RepairCancelled) and event.cause == "dropped"}
    assert sent | dropped == set(old)
    assert len(sent) == answered
    step = alice.receive(asking("c2", "b11", "b12", lamport=T0 + 20), T0 + 2 * LONG)
    assert [event.message_id for event in of_type(step, RepairScheduled)] == ["b11", "b12"]


def test_repair_can_be_switched_off() -> None:
    alice = missing_five(repair=False)
    assert alice.send(b"x", T0 + 500_000).outgoing[0].message.repair_request == ()
    alice.receive(message("b1", lamport=T0 + 500_001), T0 + 500_001)
    step = alice.receive(asking("c1", "b1"), T0 + 500_002)
    assert len(of_type(step, RepairRequestSeen)) == 1
    assert alice.tick(T0 + 500_000 + LONG).outgoing != ()
    assert all(out.reason is OutgoingReason.RESEND for out in alice.tick(T0 + 2 * LONG).outgoing)
    assert alice.to_bytes() == SdsChannel.from_bytes(alice.to_bytes(), alice.config).to_bytes()


def test_participants_repair_a_loss_among_themselves() -> None:
    """Carol misses a message whose sender is gone; bob has it."""
    network = Network(("alice", "bob", "carol"), small_config(max_retransmissions=0))
    network.send("alice", b"first")
    network.drop(1)
    network.deliver()
    network.send("bob", b"second")
    network.in_flight = [copy for copy in network.in_flight if copy[0] == "carol"]
    network.deliver()
    assert network.delivered("carol") == []
    network.names = ("bob", "carol")
    network.run(600_000)
    assert [event.content for event in network.delivered("carol")] == [b"first", b"second"]
    assert any(isinstance(event, RepairSent) for event in network.events["bob"])
    assert not any(isinstance(event, Delivered) for event in network.events["bob"][1:] if event.at > T0)


@pytest.mark.parametrize("heard", ["syncs", "content", "both"])
def test_who_hears_others_again_and_again_asks_all_the_same(heard: str) -> None:
    """Each of their messages puts off the own sync, and only that carries the request."""
    alice = opened(acknowledge_within_ms=0)
    alice.receive(message("b", lamport=T0 + 2, history=("gone",)), T0 + 3)
    asked = []
    for number in range(1, 200):
        now = T0 + number * 4_000
        asked += [entry for out in alice.tick(now).outgoing for entry in out.message.repair_request]
        is_sync = heard == "syncs" or (heard == "both" and number % 2)
        alice.receive(message(f"m{number}", lamport=now, content=None if is_sync else b"content"), now)
    period = 120_000 + 2 * 30_000  # T_req at the latest, and the longest interval
    assert len(asked) >= 200 * 4_000 // period


def test_a_request_that_gave_way_to_anothers_does_not_come_back_with_time() -> None:
    """To put it off is not enough. Stores are asked all the same."""
    alice = opened(sync_min_interval_ms=30_000)
    alice.receive(message("b", "bob", T0 + 2, ("a",)), T0 + 3)
    asked = SdsMessage("carol", "sync", alice.channel_id, T0 + 4, repair_request=(HistoryEntry("a"),))
    alice.receive(asked, T0 + 4)
    steps = [alice.tick(T0 + 60_000 * minute) for minute in range(1, 60)]
    assert sum(len(of_type(step, RefetchDue)) for step in steps) > 10
    assert asked_at(alice, T0 + 3_600_000) == []


@pytest.mark.parametrize("content", [b"more", None], ids=["content", "sync"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_request_that_gave_way_comes_back_with_a_message_that_has_to_wait(
    content: bytes | None, restarts: bool
) -> None:
    """The answer to the other's request may have been lost on its way here, and nobody names the missing one again:
    everything later would wait for ever."""
    alice = opened(sync_min_interval_ms=0)
    alice.receive(message("b", "bob", T0 + 2, ("gone",)), T0 + 3)
    asks = replace(asking("c", "gone"), causal_history=(HistoryEntry("b"),))
    alice.receive(asks, T0 + 60_000)
    assert asked_at(alice, T0 + LONG) == [], "the request itself names what waits, and it removes"
    alice.receive(message("d", "dave", T0 + 3), T0 + 70_000)
    assert asked_at(alice, T0 + LONG) == [], "nothing waits for anything new"
    if restarts:
        alice = SdsChannel.from_bytes(alice.to_bytes(), alice.config)
    alice.receive(message("e", "bob", T0 + 80_000, ("b",), content), T0 + 80_000)
    due = T0 + 80_000 + request_offset("alice", "gone", 30_000, 120_000)
    assert asked_at(alice, due - 1) == []
    assert asked_at(alice, due) == ["gone"]


def test_without_a_shortest_delay_a_message_asks_once_for_one() -> None:
    alice = opened(sync_min_interval_ms=0, repair_t_min_ms=0)
    alice.receive(message("b", "bob", T0 + 2, ("gone",)), T0 + 3)
    asked = alice.send(b"1", T0 + LONG).outgoing[0].message.repair_request
    assert [entry.message_id for entry in asked] == ["gone"]


def test_what_gave_way_is_not_asked_for_once_it_is_here() -> None:
    alice = missing_five()
    alice.receive(asking("c", "gone 0"), T0 + 60_000)
    alice.receive(message("gone 0", lamport=T0 + 1), T0 + 61_000)
    alice.receive(message("b10", lamport=T0 + 10, history=("b9",)), T0 + 62_000)
    asked = alice.send([b"1", b"2"], T0 + LONG).outgoing
    assert sorted(entry.message_id for one in asked for entry in one.message.repair_request) == [
        f"gone {number}" for number in range(1, 5)
    ]
