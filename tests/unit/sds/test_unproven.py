"""A message under an id that is not recomputed from it does not stand for that id (docs/sds.md, *Unproven ids*)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from reliable_channel.core.sds import (
    Acknowledged,
    Buffered,
    Conflict,
    Delivered,
    DependencyFound,
    DependencyLost,
    DuplicateSeen,
    MessageRefused,
    MissingDependency,
    RefetchDue,
    RefusalReason,
    SdsChannel,
)
from reliable_channel.core.sds.verify import SEARCHED_BYTES, id_verified
from reliable_channel.core.wire.hashing import IdScheme, keccak256, sds_message_id, sha256
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily
from reliable_channel.core.wire.segment import Segment, encode_segment
from tests.support.sds_inside import log_positions
from tests.unit.sds.sds_network import T0, filter_of, message, of_type, opened

X = sds_message_id("bob", T0 + 1, b"true")
TRUE = message(X, "bob", T0 + 1, content=b"true")
FORGED = {
    "in another name": message(X, "mallory", T0 + 1, content=b"false"),
    "in the same name": message(X, "bob", T0 + 1, content=b"false"),
    "equal text": message(X, "mallory", T0 + 1, content=b"true"),
    "waiting": message(X, "mallory", T0 + 1, ("never",), content=b"false"),
}
NAMING = message(sds_message_id("carol", T0 + 9, b"re"), "carol", T0 + 9, (X,), content=b"re")
HOUR = 3_600_000


def verdicts(channel: SdsChannel, *messages: object, now: int = T0 + 20) -> list[object]:
    """The events of messages that are received as a participant receives them, with their ids recomputed."""
    events: list[object] = []
    for number, one in enumerate(messages):
        found = id_verified(one, WireFamily.SPEC)  # type: ignore[arg-type]
        events += channel.receive(one, now + number, id_verified=found).events  # type: ignore[arg-type]
    return events


def delivered(events: list[object]) -> list[tuple[str, bytes | None]]:
    return [(event.sender_id, event.content) for event in events if isinstance(event, Delivered)]


def test_a_sleep_ends_no_doubt() -> None:
    """The message that makes the id may have come meanwhile, and what depends on it was delivered before it."""
    channel = opened()
    events = verdicts(channel, FORGED["in another name"], NAMING)
    channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    events += channel.tick(T0 + HOUR, late_ms=20_000).events
    events += verdicts(channel, TRUE, now=T0 + HOUR + 1)
    assert delivered(events) == [("mallory", b"false"), ("bob", b"true"), ("carol", b"re")]
    doubted = verdicts(channel, message("f" * 64, "mallory", T0 + HOUR, content=b"x"), now=T0 + HOUR + 10)
    channel.tick(T0 + 2 * HOUR, late_ms=2 * HOUR)
    assert delivered(doubted) and not channel._state.unproven.doubts


@pytest.mark.parametrize("participant", ["alice", None])
@pytest.mark.parametrize("forged", list(FORGED))
def test_what_depends_on_an_id_waits_for_the_message_that_makes_the_id(forged: str, participant: str | None) -> None:
    channel = opened(participant, before_observation=False)
    events = verdicts(channel, FORGED[forged], NAMING)
    own = [] if forged == "waiting" else [(FORGED[forged].sender_id, FORGED[forged].content)]
    assert delivered(events) == own
    events += verdicts(channel, TRUE, now=T0 + 30)
    assert delivered(events) == [*own, ("bob", b"true"), ("carol", b"re")]
    assert [event.winner for event in events if isinstance(event, Conflict)] == ["second"]
    (true,) = [e for e in events if isinstance(e, Delivered) and (e.sender_id, e.content) == ("bob", b"true")]
    assert true.replaces == (forged != "waiting")
    assert not true.repeat
    assert channel.sender_of(X) == "bob"


@pytest.mark.parametrize("forged", ["in another name", "in the same name"])
def test_nobody_has_acknowledged_an_unproven_message_and_all_of_it_counts_for_the_true_one(forged: str) -> None:
    channel = opened(None)
    own = message(
        sds_message_id("bob", T0 + 7, b"next"), "bob", T0 + 7, (X,), content=b"next", bloom_filter=filter_of(X)
    )
    events = verdicts(channel, FORGED[forged], own, NAMING)
    assert not [event for event in events if isinstance(event, Acknowledged)]
    events = verdicts(channel, TRUE, now=T0 + 30)
    assert [(e.sender_id, e.by) for e in events if isinstance(e, Acknowledged) and e.message_id == X] == [
        ("bob", "carol")
    ]


def test_a_participant_names_no_unproven_message_and_holds_none_in_its_filter() -> None:
    alice = opened()
    verdicts(alice, FORGED["in another name"])
    (outgoing,) = alice.send(b"hello", T0 + 30).outgoing
    assert outgoing.message.causal_history == ()
    assert outgoing.message.bloom_filter == filter_of()
    assert log_positions(alice) == ((outgoing.message.lamport_timestamp, outgoing.message.message_id),)


@pytest.mark.parametrize("participant", ["alice", None])
@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("forged", list(FORGED))
def test_the_time_of_a_doubt_ends(forged: str, restored: bool, participant: str | None) -> None:
    """An implementation that makes its ids otherwise is heard all the same."""
    channel = opened(participant, before_observation=False, unproven_id_ms=60_000)
    first = delivered(verdicts(channel, FORGED[forged], NAMING))
    if restored:
        channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    assert channel.missing_ids()[0] == X or forged == "waiting"
    step = channel.tick(T0 + 60_020)
    found = [(event.message_id, event.at) for event in of_type(step, DependencyFound)]
    assert found == [(X, T0 + 60_020)]
    if forged == "waiting":
        assert not of_type(step, Delivered)
        assert of_type(channel.receive(message("never", lamport=T0), T0 + 60_030), Delivered)[-1].sender_id == "carol"
        return
    assert [*first, *delivered([*step.events])] == [
        (FORGED[forged].sender_id, FORGED[forged].content),
        ("carol", b"re"),
    ]
    assert [(e.sender_id, e.by) for e in of_type(step, Acknowledged)] == (
        [] if participant else [(FORGED[forged].sender_id, "carol")]
    )
    events = verdicts(channel, TRUE, now=T0 + 60_040)
    assert delivered(events) == [("bob", b"true")]


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("forged", ["in the same name", "refuted later"])
def test_a_message_never_stands_for_an_id_when_its_sender_has_shown_how_it_makes_them(
    forged: str, restored: bool
) -> None:
    """The true message never comes, and the false one bears its sender's name."""
    channel = opened(None, before_observation=False, unproven_id_ms=60_000, timeout_for_lost_messages_ms=600_000)
    proof = message(sds_message_id("bob", T0 + 5, b"proof"), "bob", T0 + 5, content=b"proof")
    order = (proof, FORGED["in the same name"]) if forged == "in the same name" else (FORGED["in the same name"], proof)
    verdicts(channel, *order, NAMING)
    if restored:
        channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    step = channel.tick(T0 + 60_020)
    assert not of_type(step, DependencyFound)
    assert not of_type(step, Delivered)
    assert channel.missing_ids() == (X,)
    step = channel.tick(T0 + 700_000)
    assert [event.message_id for event in of_type(step, DependencyLost)] == [X]
    assert [(event.sender_id, event.lost_dependencies) for event in of_type(step, Delivered)] == [("carol", (X,))]


def test_a_content_that_takes_long_to_search_may_stand_in_the_end() -> None:
    """Its id may be true: an honest sender with an unusual parity rate is heard all the same."""
    channel = opened(None, before_observation=False, unproven_id_ms=60_000)
    proof = message(sds_message_id("bob", T0 + 5, b"proof"), "bob", T0 + 5, content=b"proof")
    long = message(X, "bob", T0 + 1, content=bytes(SEARCHED_BYTES + 1))
    verdicts(channel, proof, long, NAMING)
    assert [event.message_id for event in of_type(channel.tick(T0 + 60_030), DependencyFound)] == [X]


@pytest.mark.parametrize("size", [200, 4_000, 100_000])
def test_nobody_takes_an_id_by_a_content_that_takes_long_to_search(size: int) -> None:
    false = Segment(bytes(32), 0, None, 1, True, bytes(size))
    forged = message(X, "mallory", T0 + 300, content=encode_segment(false))
    assert id_verified(forged, WireFamily.SPEC) is False


@pytest.mark.parametrize("scheme", list(IdScheme)[:2])
@pytest.mark.parametrize(("data_count", "parity_count"), [(2, 1), (7, 1), (15, 1), (16, 2), (40, 5)])
def test_ids_of_full_size_parity_segments_are_recomputed_at_the_default_rate(
    data_count: int, parity_count: int, scheme: IdScheme
) -> None:
    """Those of an earlier version's form are known, and prove nothing."""
    content = encode_segment(Segment(bytes(32), parity_count - 1, None, parity_count, True, bytes(100_000)))
    made = scheme.message_id("bob", T0, content)
    sent = message(made, "bob", T0 + data_count + parity_count - 1, content=content)
    assert id_verified(sent, WireFamily.SPEC) is (True if scheme is IdScheme.KECCAK else None)


@pytest.mark.parametrize(("data_count", "parity_count"), [(8, 2), (5, 2), (9, 9), (30, 3), (30, 6), (200, 25)])
def test_ids_of_parity_segments_are_recomputed_at_other_rates(data_count: int, parity_count: int) -> None:
    content = encode_segment(Segment(bytes(32), 0, None, parity_count, True, bytes(50_000)))
    sent = message(sds_message_id("bob", T0, content), "bob", T0 + data_count, content=content)
    assert id_verified(sent, WireFamily.SPEC) is True


def test_unproven_messages_do_not_wait_for_each_other() -> None:
    """Senders whose ids are digests of another kind keep their order among themselves, and lose no time."""
    channel = opened(None)
    ids = [f"{number:064x}" for number in range(4)]
    chain = [message(ids[n], "dave", T0 + n, (ids[n - 1],) if n else (), content=b"%d" % n) for n in range(4)]
    assert len(delivered(verdicts(channel, *chain))) == 4
    channel = opened(None, before_observation=False)
    assert delivered(verdicts(channel, chain[1])) == []
    assert delivered(verdicts(channel, chain[0], now=T0 + 40)) == [("dave", b"0"), ("dave", b"1")]


@pytest.mark.parametrize("participant", ["alice", None])
@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("order", [(1, 2, 3, 0), (3, 2, 1, 0), (2, 1, 3, 0)])
def test_an_unproven_message_waits_for_one_that_itself_waits(
    order: tuple[int, ...], restored: bool, participant: str | None
) -> None:
    channel = opened(participant, before_observation=False)
    ids = ["first", *(f"{number:064x}" for number in range(1, 4))]
    chain = [message(ids[n], "dave", T0 + n, (ids[n - 1],) if n else (), content=b"%d" % n) for n in range(4)]
    came: list[object] = []
    for number in order:
        came += verdicts(channel, chain[number])
        if restored:
            channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    assert delivered(came) == [("dave", b"%d" % number) for number in range(4)]


def test_a_copy_of_an_unproven_message_is_a_copy_and_another_one_loses_to_it() -> None:
    channel = opened()
    copy, other = FORGED["in another name"], message(X, "eve", T0 + 1, content=b"other")
    events = verdicts(channel, copy, copy, other)
    assert [type(event) for event in events] == [Delivered, DuplicateSeen, Conflict]
    channel.tick(T0 + HOUR)
    assert [type(event) for event in verdicts(channel, copy, now=T0 + HOUR)] == [DuplicateSeen]


LONG_SEGMENT = encode_segment(Segment(bytes(32), 0, None, 3, True, bytes(50_000)))


@pytest.mark.parametrize("content", [b"hello", LONG_SEGMENT], ids=["bare", "parity segment"])
@pytest.mark.parametrize("digest", [sha256, keccak256], ids=["js-waku", "LIP-173"])
def test_a_sender_whose_ids_are_digests_of_the_content_is_acknowledged_before_it_gives_up(
    digest: Callable[[bytes], bytes], content: bytes
) -> None:
    """LIP-173 gives up after five retransmissions, 5 s apart."""
    alice, made = opened(), digest(content).hex()
    verdicts(alice, message(made, "dave", T0 + 1, content=content), now=T0 + 20)
    assert made in collect_named_ids(alice, until=T0 + 30_000)
    assert id_verified(message(made, "dave", T0 + 1, content=content + b"!"), WireFamily.SPEC) is False


def collect_named_ids(channel: SdsChannel, until: int) -> set[str]:
    """The ids that the sync messages of a participant name until then."""
    named: set[str] = set()
    while (due := channel.next_due()) is not None and due <= until:
        for outgoing in channel.tick(due).outgoing:
            named |= {entry.message_id for entry in outgoing.message.causal_history}
    return named


def test_ids_of_another_form_stand_at_once_and_in_the_nim_family_all_do() -> None:
    assert id_verified(message("opaque"), WireFamily.SPEC) is None
    assert id_verified(message("0" * 64), WireFamily.SPEC) is False
    assert id_verified(message("0" * 64), WireFamily.NIM) is None
    assert id_verified(TRUE, WireFamily.NIM) is True
    channel = opened(None)
    assert (
        len(delivered(verdicts(channel, message("opaque"), message("next", history=("opaque",), lamport=T0 + 2)))) == 2
    )


def test_the_setting_0_lets_every_message_stand_at_once() -> None:
    channel = opened(None, unproven_id_ms=0)
    assert len(delivered(verdicts(channel, FORGED["in another name"], NAMING))) == 2


def test_unproven_messages_are_bounded_and_the_greediest_senders_oldest_stands_first() -> None:
    channel = opened(None, max_remembered=3)
    ids = [f"{number:064x}" for number in range(4)]
    events = verdicts(channel, message(ids[0], "dave"), *(message(each, "mallory") for each in ids[1:]))
    assert len(delivered(events)) == 4
    assert log_positions(channel) == ((T0 + 1, ids[1]),)


def test_a_dependency_on_an_unproven_message_is_looked_up() -> None:
    channel = opened(None)
    events = verdicts(channel, FORGED["in another name"], NAMING)
    assert [event.message_id for event in events if isinstance(event, MissingDependency)] == [X]
    assert [event.waiting_for for event in events if isinstance(event, Buffered)] == [(X,)]


def test_a_channel_that_was_silent_does_not_deliver_an_unproven_message_twice() -> None:
    channel = opened(None)
    verdicts(channel, FORGED["in another name"])
    channel.forget()
    assert delivered(verdicts(channel, FORGED["in another name"])) == []


def test_a_forgery_in_the_own_name_is_no_own_message() -> None:
    alice = opened()
    forged = message("0" * 64, "alice", content=b"false")
    step = alice.observe_sent(forged, T0 + 2, id_verified=id_verified(forged, WireFamily.SPEC))
    assert [event.reason for event in of_type(step, MessageRefused)] == [RefusalReason.INVALID_ID]
    assert not alice.unacknowledged()


@pytest.mark.parametrize("restored", [False, True])
def test_an_own_message_too_long_to_search_for_its_id_is_no_forgery(restored: bool) -> None:
    """A full-size parity segment of wire dialect v0.1, behind 47 data segments, an unusual rate: what depends on it is
    delivered when the time of doubt is up, and nothing is lost."""
    content = encode_segment(Segment(b"\x01" * 32, 3, None, 16, True, b"p" * 100_000))
    first = T0 + 2
    parity = message(sds_message_id("alice", first, content), "alice", first + 47 + 3, content=content)
    assert id_verified(parity, WireFamily.SPEC) is False, "or this test shows nothing"
    pipeline = opened(before_observation=False, timeout_for_lost_messages_ms=400_000)
    after = message(sds_message_id("bob", T0 + 99, b"re"), "bob", T0 + 99, (parity.message_id,), content=b"re")
    told = {"content_digest": b"d" * 32, "content_bytes": len(content), "id_verified": False}
    events = [*pipeline.observe_sent(replace(parity, content=None), T0 + 5, **told).events]
    events += pipeline.receive(after, T0 + 100).events
    if restored:
        pipeline = SdsChannel.from_bytes(pipeline.to_bytes(), pipeline.config)
    again = pipeline.observe_sent(replace(parity, content=None), T0 + 3_000, **told).events
    assert [type(event) for event in again] == [DuplicateSeen]
    events += pipeline.tick(T0 + 300_005).events
    assert not [event for event in events if isinstance(event, MessageRefused | DependencyLost)]
    assert [event.message_id for event in events if isinstance(event, Delivered)] == [after.message_id]
    assert parity.message_id in [message_id for _, message_id in log_positions(pipeline)]


def test_an_own_message_takes_its_id_from_an_unproven_one() -> None:
    alice = opened()
    mine = message(sds_message_id("alice", T0 + 2, b"mine"), "alice", T0 + 2, content=b"mine")
    verdicts(alice, message(mine.message_id, "mallory", T0 + 2, content=b"mine"), now=T0 + 1)
    alice.observe_sent(mine, T0 + 5)
    assert [outgoing.message for outgoing in alice.unacknowledged()] == [mine]
    assert alice.sender_of(mine.message_id) == "alice"


def named(sender_id: str | None, hint: bytes | None = None, by: str = "carol", lamport: int = T0 + 9) -> SdsMessage:
    """A message that names the id with a sender and a hint."""
    content = f"{by} {lamport}".encode()
    one = message(sds_message_id(by, lamport, content), by, lamport, content=content)
    return replace(one, causal_history=(HistoryEntry(X, hint, sender_id),))


@pytest.mark.parametrize("forged", ["in another name", "waiting"])
@pytest.mark.parametrize("restored", [False, True])
def test_a_message_never_stands_for_an_id_that_is_missed_of_another_sender(restored: bool, forged: str) -> None:
    channel = opened(None, before_observation=False)
    verdicts(channel, FORGED[forged], named("bob"))
    if restored:
        channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    step = channel.tick(T0 + 900_000)
    assert next(event.message_id for event in of_type(step, DependencyLost)) == X
    assert not of_type(step, Acknowledged)
    assert X not in [message_id for _, message_id in log_positions(channel)]
    assert [type(e) for e in verdicts(channel, FORGED[forged], now=T0 + 900_001)] == [DuplicateSeen]
    events = verdicts(channel, TRUE, now=T0 + 900_002)
    assert delivered(events) == [("bob", b"true")]
    assert [event.late for event in events if isinstance(event, Delivered)] == [True]


def test_look_ups_take_turns_among_the_hints_that_are_given() -> None:
    """The first to name a missing id may give a hint that leads nowhere."""
    channel = opened(None, before_observation=False)
    hints = [bytes([number]) * 32 for number in range(6)]
    verdicts(
        channel, *(named("bob", hint, "mallory" if n < 2 else "carol", T0 + 9 + n) for n, hint in enumerate(hints))
    )
    channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    asked = [event.retrieval_hint for event in of_type(channel.tick(T0 + 299_000), RefetchDue)]
    assert asked == [*hints[:4], hints[0]]
