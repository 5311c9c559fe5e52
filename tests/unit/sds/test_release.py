"""What waits is delivered once, whatever its messages name: cycles, themselves, each other, the same twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reliable_channel.core.sds import (
    Conflict,
    Delivered,
    Evicted,
    Memory,
    MessageRefused,
    RefusalReason,
    SdsChannel,
    SdsParameters,
)
from reliable_channel.core.sds.events import SdsEvent
from tests.support.examples import examples
from tests.support.sds_inside import log_positions
from tests.unit.sds.sds_network import CHANNEL, T0, message, of_type, opened, small_config

IDS = ("a", "b", "c", "d", "e", "f")
ids = st.sampled_from(IDS)
received = st.tuples(
    ids,
    st.integers(1, 3),  # Lamport timestamp: often equal
    st.lists(ids, max_size=5),
    st.sampled_from(["bob", "carol"]),
    st.sampled_from([b"one", b"one", b"one", b"two"]),  # the same id with another content
    st.sampled_from([None, None, False, True]),  # its id was recomputed: it wins, or it stands for its id later
)
wait = st.sampled_from([0, 0, 0, 1, 30_000])
script = st.lists(st.tuples(wait, received, st.booleans()), max_size=25)

THREE_MESSAGES = [
    (0, ("a", 1, ["c"], "bob", b"one", False), False),
    (0, ("b", 1, ["c"], "bob", b"one", False), False),
    (0, ("c", 2, ["a"], "bob", b"one", False), False),
]


@settings(max_examples=examples(500))
@given(script=script, max_waiting=st.sampled_from([1, 2, 100]), max_missing=st.sampled_from([1, 2, 100]))
@example(script=THREE_MESSAGES, max_waiting=100, max_missing=100)
def test_every_message_is_delivered_once_whatever_histories_name(
    script: list[tuple[int, tuple, bool]], max_waiting: int, max_missing: int
) -> None:
    config = small_config(max_waiting=max_waiting, max_missing=max_missing, timeout_for_lost_messages_ms=60_000)
    channel = SdsChannel(CHANNEL, None, config)
    restored = SdsChannel(CHANNEL, None, config)
    now, events = T0, list[SdsEvent]()
    for pause, (message_id, lamport, history, sender, content, wins), restart in script:
        now += pause
        if restart:
            restored = SdsChannel.from_bytes(restored.to_bytes(), config)
        one = message(message_id, sender, T0 + lamport, tuple(history), content)
        events += channel.tick(now).events
        restored.tick(now)
        step = channel.receive(one, now, id_verified=wins)
        assert restored.receive(one, now, id_verified=wins) == step
        events += step.events
    events += channel.tick(now + 400_000).events
    assert channel.missing_ids() == ()
    sent = [(message_id, sender, verified) for _, (message_id, _, _, sender, _, verified), _ in script]
    ids, proving = {message_id for message_id, *_ in sent}, {sender for _, sender, verified in sent if verified}
    # Who has shown how it makes its ids takes none that is not made so.
    refuted = {message_id for message_id, sender, verified in sent if verified is False and sender in proving}
    assert {event.message_id for event in events if isinstance(event, Delivered)} == ids
    in_log = [message_id for _, message_id in log_positions(channel)]
    assert len(in_log) == len(set(in_log))
    assert ids - refuted <= set(in_log) <= ids
    assert not any(isinstance(event, MessageRefused) and event.reason != RefusalReason.NOT_CAUSAL for event in events)


def test_three_messages_that_name_each_other_in_a_triangle_are_delivered_once() -> None:
    alice = opened()
    events: list[SdsEvent] = []
    for message_id, lamport, named in (("d1", 1, "x"), ("d2", 1, "x"), ("x", 2, "d1")):
        events += alice.receive(message(message_id, lamport=T0 + lamport, history=(named,)), T0 + 5).events
    delivered = Counter(event.message_id for event in events if isinstance(event, Delivered))
    assert delivered == {"d1": 1, "d2": 1, "x": 1}


@pytest.mark.parametrize("waits_for", [lambda number: "m0", lambda number: f"m{number - 1}"], ids=["star", "chain"])
def test_one_message_releases_no_more_than_the_incoming_buffer_may_hold(waits_for: Callable[[int], str]) -> None:
    """The CPU time of an input is bounded: some 3 µs for each message that it releases."""
    observer = SdsChannel(CHANNEL, None, SdsParameters(before_observation=False))
    for number in range(1, 4_000):
        observer.receive(message(f"m{number}", lamport=T0 + number, history=(waits_for(number),)), T0 + 5_000)
    step = observer.receive(message("m0", lamport=T0), T0 + 5_000)
    assert len(of_type(step, Delivered)) <= 3_001


def test_a_chain_of_ten_thousand_that_arrives_backwards_needs_no_stack() -> None:
    observer = opened(None, before_observation=False, max_waiting=20_000)
    for number in range(10_000, 0, -1):
        one = message(f"m{number}", lamport=T0 + number, history=(f"m{number - 1}",), content=b"x")
        step = observer.receive(one, T0 + 20_000)
    assert of_type(step, Delivered) == []
    step = observer.receive(message("m0", lamport=T0), T0 + 20_000)
    assert [event.message_id for event in of_type(step, Delivered)] == [f"m{number}" for number in range(10_001)]


def test_a_full_incoming_buffer_delivers_what_the_greediest_sender_has_in_it() -> None:
    alice = opened(max_waiting=10)
    for number in range(9):
        alice.receive(message(f"evil {number}", "mallory", T0 + 2, (f"never {number}",)), T0 + 2)
    alice.receive(message("b2", "bob", T0 + 2, ("b1",)), T0 + 2)
    step = alice.receive(message("c2", "carol", T0 + 2, ("c1",)), T0 + 2)
    assert [(event.message_id, event.lost_dependencies) for event in of_type(step, Delivered)] == [
        ("evil 0", ("never 0",))
    ]
    assert [(event.memory, event.sender_id, event.count) for event in of_type(step, Evicted)] == [
        (Memory.WAITING, "mallory", 1)
    ]
    for sender, letter in (("bob", "b"), ("carol", "c")):
        step = alice.receive(message(f"{letter}1", sender, T0 + 1), T0 + 3)
        assert [event.message_id for event in of_type(step, Delivered)] == [f"{letter}1", f"{letter}2"]


def test_a_full_incoming_buffer_lists_none_as_lost_that_its_sender_has_in_it() -> None:
    """The oldest left first, and listed what had come after it as lost; that was delivered later."""
    alice = opened(max_waiting=3)
    for letter, history in (("c", ("lost c", "a", "b")), ("b", ("a", "lost b")), ("a", ("lost a",))):
        position = T0 + ord(letter)
        alice.receive(message(letter, lamport=position, history=history), T0 + 200)
    left = []
    for number in range(3):
        late = message(f"{number}", lamport=T0 + 150 + number, history=(f"lost {number}",))
        left += of_type(alice.receive(late, T0 + 200), Delivered)
    assert [(event.message_id, event.lost_dependencies) for event in left][:2] == [
        ("a", ("lost a",)),
        ("b", ("lost b",)),
    ]


def test_a_full_budget_of_missing_ids_costs_its_greediest_sender_and_nobody_else() -> None:
    alice = opened(max_missing=20)
    for number in range(19):
        alice.receive(message(f"evil {number}", "mallory", T0 + 2, (f"never {number}",)), T0 + 2)
    alice.receive(message("b2", "bob", T0 + 2, ("b1",)), T0 + 2)
    step = alice.receive(message("c2", "carol", T0 + 2, ("c1",)), T0 + 2)
    assert of_type(step, MessageRefused) == []
    assert [event.message_id for event in of_type(step, Delivered)] == ["evil 0"]
    assert {"b1", "c1"} <= set(alice.missing_ids())


def test_what_an_honest_message_waits_for_is_not_given_up_because_a_greedy_sender_named_it_first() -> None:
    alice = opened(max_missing=20)
    alice.receive(message("evil", "mallory", T0 + 2, ("b1", *(f"never {number}" for number in range(15)))), T0 + 2)
    alice.receive(message("b2", "bob", T0 + 2, ("b1",)), T0 + 2)
    for number in range(100):
        alice.receive(message(f"evil {number}", "mallory", T0 + 2, (f"more {number}",)), T0 + 2)
    assert "b1" in alice.missing_ids()
    step = alice.receive(message("b1", "bob", T0 + 1), T0 + 3)
    assert ("b2", ()) in [(event.message_id, event.lost_dependencies) for event in of_type(step, Delivered)]


def test_a_message_is_never_refused_for_the_missing_ids_of_others() -> None:
    """99 KB of invented names, then an honest message with a lost dependency."""
    alice = opened()
    for sender in range(12):
        for part in range(2):
            names = tuple(f"{sender}/{part}/{number}" for number in range(1_000))
            alice.receive(message(f"evil {sender} {part}", f"mallory {sender}", T0 + 1, names), T0 + 1)
    step = alice.receive(message("b2", "bob", T0 + 2, ("b1",)), T0 + 2)
    assert of_type(step, (MessageRefused, Conflict)) == []  # type: ignore[type-var]
    assert "b1" in alice.missing_ids()
    assert len(alice.missing_ids()) <= 10_000
