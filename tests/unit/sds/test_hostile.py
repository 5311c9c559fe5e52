"""Hostile peers: what they send is refused with a reason or bounded, and nobody else is harmed."""

from __future__ import annotations

import pytest

from reliable_channel.core.sds import (
    Acknowledged,
    Buffered,
    Conflict,
    Delivered,
    DuplicateSeen,
    Evicted,
    MessageRefused,
    MissingDependency,
    PossiblyAcknowledged,
    RefusalReason,
    SaturatedFilter,
    SdsChannel,
    SegmentAcknowledged,
)
from reliable_channel.core.sds.verify import MAX_HASHED_BYTES, id_is_recomputed, id_verified
from reliable_channel.core.wire.hashing import IdScheme, compute_joined_id, js_message_id, keccak256, sds_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily
from reliable_channel.core.wire.segment import Dialect, Segment, encode_segment
from tests.support.sds_inside import log_positions
from tests.unit.sds.sds_network import CHANNEL, SMALL, T0, message, of_type, opened, small_config

TOLERANCE_MS = 300_000


@pytest.mark.parametrize("lamport", [2**64 - 1, T0 + TOLERANCE_MS + 1])
@pytest.mark.parametrize("content", [b"content", None], ids=["content", "sync"])
def test_a_lamport_value_too_far_ahead_is_refused_and_does_not_end_the_channel(
    lamport: int, content: bytes | None
) -> None:
    alice = opened()
    step = alice.receive(message("evil", lamport=lamport, content=content), T0)
    assert [event.reason for event in of_type(step, MessageRefused)] == [RefusalReason.LAMPORT_TOO_FAR]
    assert len(step.events) == 1
    assert log_positions(alice) == ()
    assert alice.send(b"still here", T0 + 1).outgoing[0].message.lamport_timestamp == T0 + 1


def test_a_lamport_value_at_the_limit_is_taken() -> None:
    assert len(of_type(opened().receive(message("far", lamport=T0 + TOLERANCE_MS), T0), Delivered)) == 1


def test_an_all_ones_filter_acknowledges_nothing_and_is_an_event() -> None:
    alice = opened()
    alice.send(b"mine", T0)
    for number in (1, 2, 3):
        evil = message(f"b{number}", lamport=T0 + number, bloom_filter=b"\xff" * SMALL.byte_count)
        step = alice.receive(evil, T0 + number)
        assert of_type(step, PossiblyAcknowledged) == []
        assert of_type(step, SegmentAcknowledged) == []
        assert [event.saturation > 0.99 for event in of_type(step, SaturatedFilter)] == [True]
        assert len(of_type(step, Delivered)) == 1
    assert len(alice.unacknowledged()) == 1


def test_a_filter_at_capacity_is_not_saturated() -> None:
    alice = opened()
    [mine] = [outgoing.message.message_id for outgoing in alice.send(b"mine", T0).outgoing]
    words = bytearray(SMALL.byte_count)
    SMALL.insert(words, [mine, *(f"other {number}" for number in range(SMALL.capacity - 1))])
    step = alice.receive(message("b1", bloom_filter=bytes(words)), T0 + 1)
    assert of_type(step, SaturatedFilter) == []
    assert len(of_type(step, PossiblyAcknowledged)) == 1


@pytest.mark.parametrize("size", [1, SMALL.byte_count - 8, SMALL.byte_count + 8, 200_000])
def test_a_filter_of_the_wrong_size_is_refused_and_the_message_is_taken(size: int) -> None:
    alice = opened()
    mine = alice.send(b"mine", T0).outgoing[0].message.message_id
    step = alice.receive(message("b1", history=(mine,), bloom_filter=bytes(size)), T0 + 1)
    assert [event.reason for event in of_type(step, MessageRefused)] == [RefusalReason.FILTER_SIZE]
    assert len(of_type(step, Acknowledged)) == 1
    assert len(of_type(step, Delivered)) == 1


def test_ten_thousand_invented_dependencies_fill_only_their_senders_budget() -> None:
    alice = opened(max_missing_per_sender=1_000)
    reported = evicted = 0
    for number in range(100):
        invented = tuple(f"invented {number} {entry}" for entry in range(100))
        step = alice.receive(message(f"evil {number}", "mallory", T0 + 1 + number, invented), T0 + 1)
        assert of_type(step, MessageRefused) == []
        reported += len(of_type(step, MissingDependency))
        evicted += sum(event.count for event in of_type(step, Evicted) if event.sender_id == "mallory")
        assert len(of_type(step, Evicted)) <= 1
    assert (reported, evicted) == (10_000, 9_000)
    assert len(alice.missing_ids()) == 1_000
    honest = alice.receive(message("b2", "bob", T0 + 200, ("b1",)), T0 + 2)
    assert len(of_type(honest, MissingDependency)) == 1
    assert of_type(honest, Evicted) == []
    found = alice.receive(message("b1", "bob", T0 + 150), T0 + 3)
    assert [event.message_id for event in of_type(found, Delivered)] == ["b1", "b2"]


def test_more_than_a_thousand_history_entries_are_refused() -> None:
    too_long = message("evil", history=tuple(f"d{number}" for number in range(1_001)))
    step = opened().receive(too_long, T0)
    assert [event.reason for event in of_type(step, MessageRefused)] == [RefusalReason.HISTORY_TOO_LONG]


def honest(content: bytes = b"the truth", lamport: int = T0 + 5) -> SdsMessage:
    return message(sds_message_id("bob", lamport, content), "bob", lamport, content=content)


def forged(original: SdsMessage, **changes: object) -> SdsMessage:
    fields = {
        "sender_id": original.sender_id,
        "lamport_timestamp": original.lamport_timestamp,
        "content": b"a lie",
        **changes,
    }
    return SdsMessage(message_id=original.message_id, channel_id=CHANNEL, **fields)  # type: ignore[arg-type]


FORGERIES = [{}, {"content": b"the truth", "sender_id": "mallory"}, {"content": b"the truth", "lamport_timestamp": T0}]
FORGERY_NAMES = ["content", "sender", "lamport"]


@pytest.mark.parametrize("changes", FORGERIES, ids=FORGERY_NAMES)
def test_a_forged_message_after_the_honest_one_loses(changes: dict) -> None:
    alice = opened()
    alice.receive(honest(), T0 + 5)
    step = alice.receive(forged(honest(), **changes), T0 + 6)
    assert of_type(step, Delivered) == []
    assert [(event.winner, event.content) for event in of_type(step, Conflict)] == [
        ("first", forged(honest(), **changes).content)
    ]


@pytest.mark.parametrize("changes", FORGERIES, ids=FORGERY_NAMES)
def test_a_forged_message_before_the_honest_one_loses(changes: dict) -> None:
    alice = opened()
    alice.receive(forged(honest(), **changes), T0 + 5)
    step = alice.receive(honest(), T0 + 6)
    assert [event.winner for event in of_type(step, Conflict)] == ["second"]
    assert [(event.content, event.sender_id, event.replaces) for event in of_type(step, Delivered)] == [
        (b"the truth", "bob", True)
    ]
    assert log_positions(alice) == ((T0 + 5, honest().message_id),)
    assert len(of_type(alice.receive(honest(), T0 + 7), DuplicateSeen)) == 1


def test_a_forged_message_that_waits_is_replaced_before_it_is_delivered() -> None:
    alice = opened()
    waiting = forged(honest(), causal_history=(HistoryEntry("never"),))
    assert len(of_type(alice.receive(waiting, T0 + 5), Buffered)) == 1
    step = alice.receive(honest(), T0 + 6)
    assert [(event.content, event.replaces) for event in of_type(step, Delivered)] == [(b"the truth", False)]


@pytest.mark.parametrize("content", [b"mine", b"not mine"])
def test_an_own_id_under_another_name_is_a_conflict_whatever_it_holds(content: bytes) -> None:
    channel = opened()
    (sent,) = channel.send(b"mine", T0).outgoing
    claimed = forged(sent.message, sender_id="mallory", content=content)
    (conflict,) = of_type(channel.receive(claimed, T0 + 1), Conflict)
    assert (conflict.message_id, conflict.winner) == (sent.message.message_id, "first")
    assert of_type(channel.receive(sent.message, T0 + 2), Conflict) == []


def next_of_alice(content: bytes = b"mine", lamport: int = T0 + 30) -> SdsMessage:
    """What alice will send then, as somebody else could guess it."""
    return message(sds_message_id("alice", lamport, content), "alice", lamport, content=content)


@pytest.mark.parametrize("names", [(), ("never",)], ids=["delivered", "waiting"])
@pytest.mark.parametrize("seen", ["sent", "observed"])
def test_an_own_message_wins_over_somebody_elses_that_was_here_under_its_id(names: tuple[str, ...], seen: str) -> None:
    channel = opened(timeout_for_lost_messages_ms=20_000)
    own = next_of_alice()
    named = tuple(HistoryEntry(name) for name in names)
    guessed = {"sender_id": "mallory", "content": b"guessed", "lamport_timestamp": T0 + 10, "causal_history": named}
    channel.receive(forged(own, **guessed), T0 + 1)
    channel.receive(message("after", "bob", T0 + 20, (own.message_id,)), T0 + 2)
    step = channel.send(b"mine", T0 + 30) if seen == "sent" else channel.observe_sent(own, T0 + 30)
    if seen == "sent":
        assert step.outgoing[0].message.message_id == own.message_id
    assert [event.winner for event in of_type(step, Conflict)] == ["second"]
    assert [event.message_id for event in of_type(step, Delivered)] == (["after"] if names else [])
    assert of_type(channel.tick(T0 + 100_000), Delivered) == []
    positions = log_positions(channel)
    assert len({message_id for _, message_id in positions}) == len(positions) == 2
    assert [sent.message.message_id for sent in channel.unacknowledged()] == [own.message_id]


def test_an_own_message_whose_id_cannot_be_recomputed_does_not_replace_another() -> None:
    channel = opened()
    channel.receive(message("opaque", "mallory", T0 + 5, ("never",), content=b"other"), T0 + 1)
    step = channel.observe_sent(message("opaque", "alice", T0 + 5), T0 + 2)
    assert [event.winner for event in of_type(step, Conflict)] == ["first"]
    assert channel.unacknowledged() == ()


def test_when_neither_id_can_be_recomputed_the_first_stands() -> None:
    alice = opened()
    alice.receive(message("opaque", content=b"one"), T0 + 1)
    step = alice.receive(message("opaque", content=b"two"), T0 + 2)
    assert [event.winner for event in of_type(step, Conflict)] == ["first"]
    assert of_type(step, Delivered) == []


def test_the_owner_may_say_that_it_has_recomputed_an_id() -> None:
    observer = SdsChannel(CHANNEL, None, small_config())
    observer.receive(message("x", content=None), T0 + 1, content_digest=b"1" * 32)
    step = observer.receive(message("x", content=None), T0 + 2, content_digest=b"2" * 32, id_verified=True)
    assert [event.winner for event in of_type(step, Conflict)] == ["second"]
    assert [event.content for event in of_type(step, Delivered)] == [None]


def segment_bytes(index: int, *, parity: bool, dialect: Dialect = Dialect.V01) -> bytes:
    known = not parity or dialect is Dialect.LIP243
    counts = (3, 2) if dialect is Dialect.LIP243 else (3 if known else None, 2 if parity else None)
    return encode_segment(Segment(keccak256(b"x"), index, *counts, parity, b"payload", dialect=dialect))


@pytest.mark.parametrize(
    ("content", "ordinal"),
    [
        (b"bare", 0),
        (segment_bytes(0, parity=False), 0),
        (segment_bytes(2, parity=False), 2),
        (segment_bytes(1, parity=True), 4),
        (segment_bytes(1, parity=True, dialect=Dialect.LIP243), 4),
    ],
    ids=["bare", "first", "third", "parity", "lip243 parity"],
)
def test_an_id_is_recomputed_from_any_segment_of_a_send(content: bytes, ordinal: int) -> None:
    first = T0 + 5
    own = message(sds_message_id("bob", first, content), "bob", first + ordinal, content=content)
    assert id_is_recomputed(own)
    assert not id_is_recomputed(message("0" * 64, "bob", first + ordinal, content=content))


def test_an_id_that_an_earlier_version_made_is_known_and_proves_nothing() -> None:
    """``bob1`` at 750… has the same id as ``bob`` at 1750…"""
    old = message(compute_joined_id("bob", T0, b"hi"), "bob", T0, content=b"hi")
    twin = message(old.message_id, "bob1", T0 - 10**12, content=b"hi")
    assert compute_joined_id("bob1", T0 - 10**12, b"hi") == old.message_id
    assert [id_verified(one, WireFamily.SPEC) for one in (old, twin)] == [None, None]
    assert not id_is_recomputed(old)
    assert id_verified(message(old.message_id, "mallory", T0, content=b"hi"), WireFamily.SPEC) is False


def test_the_id_of_js_waku_is_recomputed_and_what_has_no_content_is_not() -> None:
    assert id_is_recomputed(message(js_message_id(b"hi"), content=b"hi"))
    assert not id_is_recomputed(message("sync", content=None))
    assert not id_is_recomputed(message("x", lamport=0, content=segment_bytes(2, parity=False)))


def test_recomputing_an_id_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A huge v0.1 parity segment would have to be hashed for every count of data segments."""
    huge = encode_segment(Segment(keccak256(b"x"), 0, None, 1, True, bytes(140_000)))
    hashed = []

    def counted(self: IdScheme, sender_id: str, first_lamport: int | None, content: bytes) -> str:
        hashed.append(len(content))
        return ""

    monkeypatch.setattr(IdScheme, "message_id", counted)
    assert not id_is_recomputed(message("0" * 64, content=huge))
    assert sum(hashed) <= MAX_HASHED_BYTES + 2 * len(huge)


@pytest.mark.parametrize("data_count", [8, 15, 3])
def test_the_usual_numbers_of_data_segments_are_tried_first(data_count: int) -> None:
    """A parity segment of v0.1 does not say how many data segments come before it."""
    parity = encode_segment(Segment(keccak256(b"x"), 0, None, 1, True, bytes(100_000 if data_count >= 8 else 1_000)))
    own = message(sds_message_id("bob", T0, parity), "bob", T0 + data_count, content=parity)
    assert id_is_recomputed(own)


def test_messages_that_name_each_other_do_not_wait_for_ever() -> None:
    alice = opened()
    alice.receive(message("a", lamport=T0 + 1, history=("b",)), T0 + 1)
    step = alice.receive(message("b", lamport=T0 + 1, history=("a",)), T0 + 2)
    assert {event.message_id for event in of_type(step, Delivered)} == {"a", "b"}
    assert [event.reason for event in of_type(step, MessageRefused)] == [RefusalReason.NOT_CAUSAL]


def test_a_message_that_names_itself_does_not_wait_for_itself() -> None:
    step = opened().receive(message("a", history=("a", "a")), T0 + 1)
    assert len(of_type(step, Delivered)) == 1
    assert [event.detail for event in of_type(step, MessageRefused)] == ["a"]


def test_a_held_message_that_turns_out_not_earlier_releases_what_named_it() -> None:
    """``a`` names ``b``; ``b`` comes with a later timestamp and waits for something lost."""
    alice = opened()
    alice.receive(message("a", lamport=T0 + 1, history=("b",)), T0 + 1)
    alice.receive(message("c", lamport=T0 + 3, history=("a",)), T0 + 1)
    step = alice.receive(message("b", lamport=T0 + 2, history=("gone",)), T0 + 2)
    assert [event.message_id for event in of_type(step, Delivered)] == ["a", "c"]


def test_a_message_of_another_channel_or_of_no_kind_is_not_taken() -> None:
    alice = opened()
    other = SdsMessage("bob", "m", "another channel", T0, content=b"x")
    assert alice.receive(other, T0).events == ()
    step = alice.receive(message("m", lamport=None, content=None), T0)
    assert [event.reason for event in of_type(step, MessageRefused)] == [RefusalReason.INVALID_KIND]


def test_participants_past_the_bound_replace_each_other_and_are_delivered() -> None:
    """What a made-up name acknowledges cannot be told from what somebody does; it costs no more than a slot."""
    alice = opened(max_participants=2)
    mine = alice.send(b"mine", T0).outgoing[0].message.message_id
    alice.receive(message("x", "bob", T0 + 1), T0 + 1)
    for number in range(5):
        step = alice.receive(message(f"m{number}", f"sybil {number}", T0 + 2 + number, (mine,)), T0 + 2)
        assert len(of_type(step, Delivered)) == 1
        assert [event.by for event in of_type(step, Acknowledged)] == [f"sybil {number}"]
    alone = opened(max_participants=1)
    mine = alone.send(b"mine", T0).outgoing[0].message.message_id
    step = alone.receive(message("x", "bob", T0 + 1, (mine,)), T0 + 1)
    assert of_type(step, Acknowledged) == []


def test_what_is_older_than_the_bounded_log_is_not_delivered_again() -> None:
    alice = opened(max_log_entries=16)
    for number in range(1, 40):
        alice.receive(message(f"b{number}", lamport=T0 + number), T0 + number)
    step = alice.receive(message("b1", lamport=T0 + 1), T0 + 50)
    assert [event.reason for event in of_type(step, MessageRefused)] == [RefusalReason.OLDER_THAN_LOG]
    waiting = alice.receive(message("b99", lamport=T0 + 99, history=("b2",)), T0 + 99)
    assert len(of_type(waiting, Buffered)) == 1
    released = alice.receive(message("b2", lamport=T0 + 2), T0 + 100)
    assert [event.message_id for event in of_type(released, Delivered)] == ["b99"]
    assert alice.missing_ids() == ()
