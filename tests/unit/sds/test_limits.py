"""The limits of docs/sds.md: state has a ceiling in bytes, an input has one in work, a message always fits."""

from __future__ import annotations

import pytest

from reliable_channel.core.sds import (
    Delivered,
    DependencyBeforeObservation,
    DependencyLost,
    FilterRolledOver,
    MessageRefused,
    MissingDependency,
    PossiblyAcknowledged,
    RefetchDue,
    RefusalReason,
    SdsChannel,
)
from reliable_channel.core.sds.filter import FLUSH_AT
from reliable_channel.core.sds.incoming import MAX_LOST_PER_SWEEP, UNMET_BYTES, IncomingBuffer
from reliable_channel.core.sds.room import largest_sds_header
from reliable_channel.core.wire import bloom
from reliable_channel.core.wire.bloom import FilterFamily, FilterFormat
from reliable_channel.core.wire.malformed import Malformed, Reason
from reliable_channel.core.wire.sds import (
    HistoryEntry,
    HistoryLayout,
    SdsMessage,
    WireFamily,
    decode_sds_message,
    encode_sds_message,
)
from tests.support.sds_inside import log_positions
from tests.unit.sds.sds_network import T0, message, of_type, opened, small_config

LONG = "\N{OLD ITALIC LETTER A}" * 1_024
"""The longest id that is allowed: 4 096 bytes."""


# ---- decoding ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["causal_history", "repair_request"])
@pytest.mark.parametrize(
    "entry",
    [HistoryEntry("x" * 1_025), HistoryEntry("x", None, "x" * 1_025), HistoryEntry("x", b"x" * 1_025)],
    ids=["id", "sender", "hint"],
)
@pytest.mark.parametrize("family", list(WireFamily))
def test_what_a_history_names_has_the_limits_of_a_messages_own_fields(
    field: str, entry: HistoryEntry, family: WireFamily
) -> None:
    one = message("b1")
    setattr(one, field, (entry,))
    refused = decode_sds_message(encode_sds_message(one, family), family)
    assert isinstance(refused, Malformed)
    assert refused.reason is Reason.MALFORMED_SDS
    assert field in refused.detail


# ---- sending -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("history_size", [2, 20])
@pytest.mark.parametrize(
    "wire",
    [
        {},
        *({"wire_family": WireFamily.NIM, "history_layout": layout} for layout in HistoryLayout),
    ],
)
def test_a_message_never_outgrows_the_header_that_a_segment_leaves_room_for(
    history_size: int, wire: dict[str, object]
) -> None:
    """Ids, sender ids and hints as long as they may be fill history and repair requests."""
    channel = opened(causal_history_size=history_size, sync_min_interval_ms=0, **wire)
    room = largest_sds_header(channel.config, channel.channel_id, "alice")
    for number in range(40):
        missing = tuple(HistoryEntry(LONG[:-4] + f"{number:02}{each:02}", None, LONG) for each in range(3))
        evil = SdsMessage(LONG[:-1] + "s", LONG[:-2] + f"{number:02}", channel.channel_id, T0 + number, missing)
        evil.content = b"x"
        channel.receive(evil, T0 + number, retrieval_hint=b"h" * 1_024)
        channel.receive(message(LONG[:-3] + f"d{number:02}", LONG, T0 + number), T0, retrieval_hint=b"h" * 1_024)
    sent = channel.send([bytes([each]) for each in range(5)], T0 + 500_000).outgoing
    sync = channel.send_sync(T0 + 600_000).outgoing
    for outgoing in sent:
        assert len(outgoing.data) <= room
    assert all(len(outgoing.data) <= 150_000 - 1_024 for outgoing in sync)


def test_an_honest_history_is_named_whole_with_its_hints() -> None:
    channel = opened()
    for number in (1, 2):
        hint = bytes([number]) * 32
        channel.receive(message(f"{number:064x}", "b" * 128, T0 + number), T0 + number, retrieval_hint=hint)
    named = channel.send(b"mine", T0 + 10).outgoing[0].message.causal_history
    assert [(each.message_id, each.retrieval_hint) for each in named] == [
        (f"{number:064x}", bytes([number]) * 32) for number in (1, 2)
    ]


def test_the_own_message_before_takes_no_place_of_others() -> None:
    """It is named beside the newest two, or listeners of a busy channel would be acknowledged half as fast."""
    channel = opened()
    own = channel.send(b"mine", T0).outgoing[0].message.message_id
    others = [f"{number:064x}" for number in range(1, 6)]
    for number, message_id in enumerate(others, start=1):
        channel.receive(message(message_id, "bob", T0 + number), T0 + number, retrieval_hint=bytes([number]) * 32)
    named = channel.send(b"mine again", T0 + 10).outgoing[0].message.causal_history
    assert [each.message_id for each in named] == [own, *others[-2:]]
    assert [each.retrieval_hint for each in named[1:]] == [bytes([number]) * 32 for number in (4, 5)]


def test_the_own_message_before_is_named_however_long_the_names_of_others_are() -> None:
    channel = opened()
    own = channel.send(b"mine", T0).outgoing[0].message.message_id
    for number in range(1, 4):
        channel.receive(message(LONG[:-1] + f"{number}", LONG, T0 + number), T0 + number)
    named = channel.send(b"mine again", T0 + 10).outgoing[0].message.causal_history
    assert [each.message_id for each in named] == [own]


# ---- Lamport timestamps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_ms", [300_000, 86_400_000])
def test_a_rider_does_not_get_the_successors_of_a_tolerated_timestamp_refused(ahead_ms: int) -> None:
    """One message a second at the edge of the tolerance, or of an earlier one; bob follows what is tolerated, as his
    clock demands, in bursts."""
    observer = opened(None)
    clock = 0
    refused = 0
    for second in range(200):
        now = T0 + second * 1_000
        evil = observer.receive(message(f"evil {second}", "mallory", max(clock + 1, now + ahead_ms)), now)
        clock = max([clock, now, *(event.lamport_timestamp for event in of_type(evil, Delivered))])
        for burst in range(5):
            clock += 1
            refused += len(of_type(observer.receive(message(f"b{second}/{burst}", "bob", clock), now), MessageRefused))
    assert refused == 0


def test_the_clock_cannot_be_driven_far_ahead_by_a_few_messages() -> None:
    observer = opened(None)
    highest = 0
    for number in range(1, 101):
        for ahead in (86_400_000, 400_000, 300_000):
            step = observer.receive(message(f"{number} {ahead}", "mallory", T0 + ahead), T0)
            highest = max([highest, *(event.lamport_timestamp for event in of_type(step, Delivered))])
    assert highest <= T0 + 300_000
    far = message("far", "mallory", T0 + 300_000 + 513)
    assert [event.reason for event in of_type(observer.receive(far, T0), MessageRefused)] == [
        RefusalReason.LAMPORT_TOO_FAR
    ]


def test_a_flood_dated_ahead_pushes_only_its_own_out_of_the_log() -> None:
    observer = opened(None, max_log_entries=100)
    for number in range(20):
        observer.receive(message(f"b{number}", "bob", T0 + number), T0 + 20)
    for number in range(1_000):
        observer.receive(message(f"evil {number}", "mallory", T0 + 250_000 + number), T0 + 20)
    assert {f"b{number}" for number in range(20)} <= {message_id for _, message_id in log_positions(observer)}
    for number, sender in enumerate(("bob", "carol", "mallory")):
        late = observer.receive(message(f"late {sender}", sender, T0 + 21 + number), T0 + 40)
        assert len(of_type(late, Delivered)) == 1, sender


def test_a_first_message_dated_ahead_hides_nothing_as_before_observation() -> None:
    observer = SdsChannel("test-channel", None, small_config())
    observer.receive(message("evil", "mallory", T0 + 299_000), T0)
    step = observer.receive(message("b2", "bob", T0 + 10, ("b1",)), T0 + 10)
    assert of_type(step, DependencyBeforeObservation) == []
    assert len(of_type(step, MissingDependency)) == 1


# ---- state -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("participant", [None, "alice"])
def test_the_state_of_a_channel_has_a_ceiling_in_bytes(participant: str | None) -> None:
    """The widest messages that are allowed, from ever new senders, all naming ids of the greatest length."""
    limits = {
        "max_log_bytes": 400_000,
        "max_waiting_bytes": 400_000,
        "max_missing_bytes": 400_000,
        "max_remembered_bytes": 400_000,
        "max_kept_bytes": 400_000,
    }
    bounds = {"max_tracked": 20, "max_participants": 20}
    channel = opened(participant, **limits, **bounds, sync_min_interval_ms=0, acknowledge_within_ms=0)
    ceiling = 2 * sum(limits.values()) + 3 * 20 * 4_096 * 4 + 20 * 1_000_000 // 1_000
    for number in range(600):
        tail = f"{number:04}"
        sender = LONG[:-4] + tail
        names = tuple(HistoryEntry(LONG[:-6] + tail + f"{each:02}", b"h" * 1_024, LONG) for each in range(9))
        kind = number % 3
        evil = SdsMessage(sender, LONG[:-5] + "m" + tail, channel.channel_id, T0 + number)
        evil.content = None if kind == 2 else b"x" * 100
        evil.causal_history = names if kind else ()
        evil.repair_request = names
        channel.receive(evil, T0 + number * 1_000)
        if number % 50 == 49:
            channel.tick(T0 + number * 1_000)
            assert len(channel.to_bytes()) < ceiling, number


# ---- work --------------------------------------------------------------------------------------------------------


def test_a_tick_over_a_month_of_missing_ids_does_not_repeat_every_look_up() -> None:
    alice = opened(sync_min_interval_ms=0, acknowledge_within_ms=0)
    for number in range(10):
        names = tuple(f"{number}/{each}" for each in range(1_000))
        alice.receive(message(f"evil {number}", f"mallory {number}", T0 + 1, names), T0 + 1)
        alice.receive(message(f"too {number}", f"oscar {number}", T0 + 1, names), T0 + 1)
    step = alice.tick(T0 + 29 * 86_400_000)
    assert len(of_type(step, RefetchDue)) <= 10_000
    assert len(alice.missing_ids()) == 10_000


def test_the_first_message_of_a_new_sender_does_not_walk_the_whole_past() -> None:
    """1 500 messages that each name the 100 before; a newcomer names the last, and 10 000 names are followed."""
    observer = opened(None, before_observation=False)
    for number in range(1_500):
        history = tuple(f"m{each}" for each in range(max(0, number - 100), number))
        observer.receive(message(f"m{number}", "bob", T0 + number, history), T0 + 1_500)
    entries = [observer._state.log.get(f"m{number}") for number in range(1_500)]
    before = {entry.past for entry in entries}
    observer.receive(message("new", "carol", T0 + 1_500, ("m1499",)), T0 + 1_500)
    walked = [len(entry.history) for entry in entries if entry.past not in before]
    assert 9_900 < len(walked) + sum(walked) < 10_200


def test_losing_ids_that_many_messages_name_looks_each_name_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    observer = opened(None, before_observation=False)
    names = tuple(f"gone {each}" for each in range(200))
    for n in range(300):
        observer.receive(message(f"m{n}", f"s{n}", T0 + n + 1, names), T0 + 1)
    log, looked_up = observer._state.log, list[str]()
    holds = log.holds
    monkeypatch.setattr(log, "holds", lambda message_id: looked_up.append(message_id) or holds(message_id))
    step = observer.tick(T0 + 400_000)
    assert len(of_type(step, Delivered)) == 300
    assert all(set(event.lost_dependencies) == set(names) for event in of_type(step, Delivered))
    assert len(looked_up) < 3 * 300 * 200  # when it waits no more, and when it is delivered


def test_all_messages_together_wait_for_a_bounded_number_of_names() -> None:
    """1 000 messages that named 1 000 missing ids each made one tick take 4 s. The greediest sender pays, and is
    delivered with its loss stated."""
    observer = opened(None, before_observation=False)
    observer.receive(message("b2", "bob", T0 + 1, ("b1",)), T0 + 1)
    names = tuple(f"gone {each}" for each in range(1_000))
    delivered = []
    for number in range(150):
        step = observer.receive(message(f"m{number}", f"s{number}", T0 + number, names), T0 + 1)
        delivered += of_type(step, Delivered)
        waiting = observer._state.incoming.waiting.values()
        assert sum(len(each.unmet) for each in waiting) <= observer.config.max_waiting_bytes // UNMET_BYTES
    assert all(set(event.lost_dependencies) == set(names) for event in delivered)
    rest = of_type(observer.tick(T0 + 400_000), Delivered)
    assert sorted(e.message_id for e in (*delivered, *rest)) == sorted(["b2", *(f"m{n}" for n in range(150))])
    assert "b2" in {event.message_id for event in rest}


@pytest.mark.parametrize("backwards", [False, True], ids=["in order", "backwards"])
def test_one_message_that_releases_a_chain_has_each_looked_at_a_few_times(
    backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each names the 50 before it, the oldest first, and was looked at again when each of them was delivered."""
    observer = opened(None, before_observation=False)
    for number in sorted(range(1, 500), reverse=backwards):
        history = tuple(f"m{each}" for each in range(max(0, number - 50), number))
        observer.receive(message(f"m{number}", f"s{number % 7}", T0 + number, history), T0 + 500)
    looks = []
    watch = IncomingBuffer._watch
    monkeypatch.setattr(IncomingBuffer, "_watch", lambda *given: looks.append(given) or watch(*given))
    step = observer.receive(message("m0", "s0", T0), T0 + 500)
    assert [event.message_id for event in of_type(step, Delivered)] == [f"m{number}" for number in range(500)]
    assert len(looks) <= 3 * 500


def test_no_sweep_gives_up_more_than_it_may_and_every_id_is_given_up() -> None:
    """10 000 ids that were missed at once were given up at once; nothing goes by how a tick is cut, or by a restore."""
    names = [tuple(f"{sender}/{each}" for each in range(1_000)) for sender in range(3)]
    one, two = opened(None, before_observation=False), opened(None, before_observation=False)
    for number, history in enumerate(names):
        for observer in (one, two):
            observer.receive(message(f"m{number}", f"s{number}", T0 + 1, history), T0 + 1)
    whole = of_type(one.tick(T0 + 400_000), DependencyLost)
    pieces = []
    while (due := two.next_due()) is not None and due <= T0 + 400_000:
        step = of_type(two.tick(due), DependencyLost)
        pieces += step
        assert len(step) <= MAX_LOST_PER_SWEEP
        if step:
            two = SdsChannel.from_bytes(two.to_bytes(), two.config)
    assert pieces == whole
    assert {event.message_id for event in whole} == {each for history in names for each in history}
    assert max(event.at for event in whole) <= T0 + 310_000


@pytest.mark.parametrize("grown", [False, True], ids=["usual", "grown"])
def test_a_filter_of_nim_sds_makes_nobody_hash_all_ids_at_once(grown: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its hash is pure Python: the first filter took 138 ms over 1 000 ids of 1 024 characters."""
    usual = FilterFormat(FilterFamily.NIM, 1_000)
    observer = opened(None, filter_format=usual, before_observation=False)
    hashed: list[bytes] = []
    real = bloom.fingerprint64  # type: ignore[attr-defined]
    monkeypatch.setattr(bloom, "fingerprint64", lambda data: hashed.append(data) or real(data))
    ids = [f"{grown}{number:060}" for number in range(300)]
    for number, message_id in enumerate(ids):
        hashed.clear()
        observer.receive(message(message_id, "bob", T0 + number), T0 + 300)
        assert len(hashed) <= 2
    filter_format = usual.other_size if grown else usual
    assert filter_format is not None
    words = bytearray(filter_format.byte_count)
    filter_format.insert(words, ids[:100])
    hashed.clear()
    last = message(f"{grown} last", "carol", T0 + 400, bloom_filter=filter_format.encode(words))
    step = observer.receive(last, T0 + 400)
    assert {event.message_id for event in of_type(step, PossiblyAcknowledged)} >= {*ids[:100]}
    assert len(hashed) <= 2


def test_an_own_filter_hashes_few_ids_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """1 024 ids of 1 024 characters took 140 ms; a filter that is rebuilt takes the newest ones once more."""
    alice = opened(filter_format=FilterFormat(FilterFamily.NIM, 1_000))
    hashed: list[bytes] = []
    real = bloom.fingerprint64  # type: ignore[attr-defined]
    monkeypatch.setattr(bloom, "fingerprint64", lambda data: hashed.append(data) or real(data))
    rolled = 0
    for number in range(1_500):
        hashed.clear()
        step = alice.receive(message(f"own filter {number}", "bob", T0 + number), T0 + number)
        rolled += len(of_type(step, FilterRolledOver))
        assert len(hashed) <= 2 * FLUSH_AT <= 128
    assert rolled == 1
