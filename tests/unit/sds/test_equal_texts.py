"""Two messages with one id: equal texts of js-waku users, and conflicts."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.sds import (
    Acknowledged,
    Buffered,
    Conflict,
    Delivered,
    DuplicateSeen,
    MessageRefused,
    PossiblyAcknowledged,
    RefusalReason,
    SdsChannel,
)
from reliable_channel.core.sds.events import SdsEvent
from reliable_channel.core.wire.hashing import compute_joined_id, js_message_id, sds_message_id, sha256
from reliable_channel.core.wire.sds import SdsMessage
from tests.support.sds_inside import log_positions
from tests.unit.sds.sds_network import CHANNEL, T0, filter_of, message, of_type, opened, small_config

OK = js_message_id(b"ok")


def ok(sender: str, lamport: int, history: tuple[str, ...] = (), message_id: str = OK) -> SdsMessage:
    return message(message_id, sender, lamport, history, content=b"ok")


def sends(events: list[SdsEvent]) -> list[tuple[str, int]]:
    return [(event.sender_id, event.lamport_timestamp) for event in events if isinstance(event, Delivered)]


@pytest.mark.parametrize("participant", [None, "alice"])
def test_five_copies_each_of_two_senders_equal_text_are_two_messages(participant: str | None) -> None:
    channel = opened(participant)
    events: list[SdsEvent] = []
    for number in range(5):
        for sender, lamport in (("bob", T0 + 1), ("carol", T0 + 2)):
            events += channel.receive(ok(sender, lamport), T0 + 10 + number).events
    assert sends(events) == [("bob", T0 + 1), ("carol", T0 + 2)]
    assert [event.repeat for event in events if isinstance(event, Delivered)] == [False, True]
    assert Counter(type(event).__name__ for event in events)["DuplicateSeen"] == 8
    assert not [event for event in events if isinstance(event, Conflict)]
    assert log_positions(channel) == ((T0 + 2, OK),)


def test_a_first_text_that_waits_is_delivered_beside_an_equal_one_that_does_not() -> None:
    channel = opened()
    assert of_type(channel.receive(ok("bob", T0 + 2, ("gone",)), T0 + 2), Buffered)
    step = channel.receive(ok("carol", T0 + 3), T0 + 3)
    assert sends(step.events) == [("carol", T0 + 3)]
    after = channel.receive(message("next", "dave", T0 + 4, (OK,)), T0 + 4)
    assert [event.message_id for event in of_type(after, Delivered)] == ["next"]
    late = channel.receive(message("gone", "erin", T0 + 1), T0 + 5)
    assert sends(late.events) == [("erin", T0 + 1), ("bob", T0 + 2)]


def test_a_further_text_waits_for_what_it_depends_on_itself() -> None:
    channel = opened()
    channel.receive(ok("bob", T0 + 1), T0 + 1)
    assert of_type(channel.receive(ok("carol", T0 + 3, ("question",)), T0 + 3), Buffered)
    assert of_type(channel.receive(ok("carol", T0 + 3, ("question",)), T0 + 4), DuplicateSeen)
    step = channel.receive(message("question", "dave", T0 + 2), T0 + 5)
    assert sends(step.events) == [("dave", T0 + 2), ("carol", T0 + 3)]


def test_equal_texts_are_one_message_for_acknowledgements() -> None:
    observer = SdsChannel(CHANNEL, None, small_config())
    observer.receive(ok("bob", T0 + 1), T0 + 1)
    observer.receive(ok("carol", T0 + 2), T0 + 2)
    step = observer.receive(message("next", "dave", T0 + 3, (OK,)), T0 + 3)
    assert [(event.message_id, event.by) for event in of_type(step, Acknowledged)] == [(OK, "dave")]


times = st.lists(st.tuples(st.sampled_from(["bob", "carol", "dave"]), st.integers(1, 6)), max_size=30)


@given(times, st.sampled_from([None, "alice"]), st.sets(st.integers(0, 30)))
def test_every_send_of_a_text_is_delivered_once_in_any_order_over_restarts(
    arrivals: list[tuple[str, int]], participant: str | None, restarts: set[int]
) -> None:
    channel = opened(participant)
    found: list[tuple[str, int]] = []
    for number, (sender, lamport) in enumerate(arrivals):
        if number in restarts:
            channel = SdsChannel.from_bytes(channel.to_bytes(), small_config())
        history = ("missing",) if lamport % 3 == 0 else ()
        found += sends(channel.receive(ok(sender, T0 + lamport, history), T0 + 100 + number).events)
    found += sends(channel.receive(message("missing", "erin", T0), T0 + 200).events)
    assert Counter(found) == Counter({(sender, T0 + lamport) for sender, lamport in arrivals} | {("erin", T0)})


def test_the_memory_of_further_sends_is_bounded_and_forgets_towards_not_delivering() -> None:
    channel = opened(max_repeats=4)
    for number in range(10):
        channel.receive(ok("bob", T0 + 10 + number), T0 + 100 + number)
    assert len(channel._state.repeats.sends) == 4
    again = [event for number in range(10) for event in channel.receive(ok("bob", T0 + 10 + number), T0 + 200).events]
    assert sends(again) == []
    assert len([event for event in again if isinstance(event, MessageRefused)]) == 5
    assert sends(channel.receive(ok("carol", T0 + 30), T0 + 201).events) == [("carol", T0 + 30)]


def test_further_sends_that_are_dated_ahead_refuse_nobody_else() -> None:
    channel = opened(max_repeats=4)
    for number in range(20):
        channel.receive(ok("mallory", T0 + 60_000 + number), T0 + 1)
    assert sends(channel.receive(ok("carol", T0 + 5), T0 + 3).events) == [("carol", T0 + 5)]


def test_a_flood_of_further_sends_makes_nobody_elses_message_old() -> None:
    """An equal text that was lost on its way comes from a store or by repair, long after others were sent."""
    channel = opened(max_repeats=4)
    for number in range(20):
        channel.receive(ok("mallory", T0 + 10 + number), T0 + 100 + number)
    assert sends(channel.receive(ok("carol", T0 + 5), T0 + 200).events) == [("carol", T0 + 5)]
    assert sends(channel.receive(ok("mallory", T0 + 5), T0 + 201).events) == [], "hers may have been delivered"


crowds = st.lists(st.tuples(st.sampled_from(["alice", "mallory", "eve", "trudy"]), st.integers(1, 300)), max_size=80)


@given(crowds, st.sampled_from([None, "bob"]), st.sets(st.integers(0, 80)))
def test_whoever_sends_less_than_others_has_each_text_delivered_once_whatever_they_send(
    arrivals: list[tuple[str, int]], participant: str | None, restarts: set[int]
) -> None:
    own = [*dict.fromkeys(lamport for sender, lamport in arrivals if sender == "alice")][:2]
    channel, config = opened(participant, max_repeats=16), small_config(max_repeats=16)
    events: list[tuple[str, int]] = []
    for number, (sender, lamport) in enumerate(arrivals):
        if sender == "alice" and lamport not in own:
            continue
        if number in restarts:
            channel = SdsChannel.from_bytes(channel.to_bytes(), config)
        events += sends(channel.receive(ok(sender, T0 + lamport), T0 + 300 + number).events)
    for sender, lamport in arrivals:
        if sender != "alice" or lamport in own:
            events += sends(channel.receive(ok(sender, T0 + lamport), T0 + 500).events)
    assert sorted(lamport for sender, lamport in events if sender == "alice") == sorted(T0 + lamport for lamport in own)
    assert max(Counter(events).values(), default=1) == 1


def test_an_id_that_binds_its_sender_has_no_further_sends() -> None:
    channel = opened()
    own = sds_message_id("bob", T0 + 5, b"ok")
    channel.receive(ok("bob", T0 + 5, message_id=own), T0 + 5)
    step = channel.receive(ok("mallory", T0 + 6, message_id=own), T0 + 6)
    assert of_type(step, Delivered) == []
    assert [event.winner for event in of_type(step, Conflict)] == ["first"]


def test_equal_contents_under_an_opaque_id_are_two_sends() -> None:
    channel = opened()
    events = [*channel.receive(ok("bob", T0 + 5, message_id="opaque"), T0 + 5).events]
    events += channel.receive(ok("carol", T0 + 6, message_id="opaque"), T0 + 6).events
    assert sends(events) == [("bob", T0 + 5), ("carol", T0 + 6)]


def test_there_is_one_change_of_mind_for_an_id() -> None:
    """In the older form two senders can make one id; who comes second wins, and then stands."""
    lamport = 1_700_000_000_123
    one = message(compute_joined_id("alice", lamport, b"x"), "alice", lamport, content=b"x")
    two = message(one.message_id, "alice1", lamport - 10**12, content=b"x")
    channel = SdsChannel(CHANNEL, None, small_config())
    channel.tick(lamport)
    events = [event for _ in range(5) for each in (one, two) for event in channel.receive(each, lamport).events]
    assert sends(events) == [("alice", lamport), ("alice1", lamport - 10**12)]


@given(st.permutations(["honest", "forged", "forged too"]), st.data())
def test_a_participant_and_an_observer_judge_alike(order: list[str], data: st.DataObject) -> None:
    """The pipeline gives digests and what ingest found of the id; a participant finds it out itself."""
    lamport = T0 + 5
    by_hash = data.draw(st.booleans())
    message_id = js_message_id(b"truth") if by_hash else sds_message_id("bob", lamport, b"truth")
    contents = {"honest": b"truth", "forged": b"lie", "forged too": b"truth"}
    senders = {"honest": "bob", "forged": "mallory", "forged too": data.draw(st.sampled_from(["mallory", "bob"]))}
    lamports = {"honest": lamport, "forged": lamport, "forged too": lamport + 1}
    found = []
    for participant in (None, "alice"):
        channel = opened(participant)
        events: list[SdsEvent] = []
        for name in order:
            verified = name == "honest" or (by_hash and contents[name] == b"truth")
            given_here = contents[name] if participant else None
            one = message(message_id, senders[name], lamports[name], content=given_here)
            about = {} if participant else {"content_digest": sha256(contents[name]), "id_verified": verified}
            events += channel.receive(one, T0 + 10, **about).events  # type: ignore[arg-type]
        found.append(
            [(e.sender_id, e.lamport_timestamp, e.digest, e.replaces, e.repeat) for e in events if type(e) is Delivered]
        )
        found.append([(e.sender_id, e.winner) for e in events if type(e) is Conflict])  # type: ignore[misc]
    assert found[:2] == found[2:]
    assert ("bob", lamport) in [each[:2] for each in found[0]]


def talk_on(channel: SdsChannel, now: int) -> None:
    """Messages of bob that make the log forget what he sent before."""
    for number in range(20):
        channel.receive(message(f"bob's {number}", "bob", now + number), now + number)


@pytest.mark.parametrize("restored", [False, True])
def test_a_text_whose_first_send_the_log_forgot_is_tracked_once(restored: bool) -> None:
    """A filter that contains the id would else count twice, until a restart."""
    channel, text = opened(None, max_log_entries=8), js_message_id(b"ok")
    first, again = message(text, "bob", T0 + 1, content=b"ok"), message(text, "bob", T0 + 900, content=b"ok")
    channel.receive(message("carol's", "carol", T0, bloom_filter=filter_of()), T0)
    channel.receive(first, T0 + 1)
    talk_on(channel, T0 + 2)
    assert len(of_type(channel.receive(again, T0 + 900), Delivered)) == 1
    if restored:
        channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    step = channel.receive(message("a filter", "carol", T0 + 901, bloom_filter=filter_of(text)), T0 + 901)
    assert [event.message_id for event in of_type(step, PossiblyAcknowledged)] == [text]


def test_a_message_that_the_log_forgot_is_not_delivered_again_because_of_a_stranger_under_its_id() -> None:
    channel = opened(None, max_log_entries=8)
    true = message(sds_message_id("bob", T0 + 1, b"true"), "bob", T0 + 1, content=b"true")
    assert len(of_type(channel.receive(true, T0 + 1, id_verified=True), Delivered)) == 1
    talk_on(channel, T0 + 2)
    forged = message(true.message_id, "mallory", T0 + 900, content=b"false")
    channel.receive(forged, T0 + 900, id_verified=False)
    step = channel.receive(true, T0 + 901, id_verified=True)
    assert of_type(step, Delivered) == []
    assert [event.reason for event in of_type(step, MessageRefused)] == [RefusalReason.OLDER_THAN_LOG]


def test_an_id_that_begins_with_nul_is_an_id_like_any_other() -> None:
    """Keys of further sends are no texts, so no text is reserved."""
    channel = opened()
    [delivered] = of_type(channel.receive(message("\x00mine", "bob", T0 + 1), T0 + 1), Delivered)
    assert delivered.message_id == "\x00mine"
