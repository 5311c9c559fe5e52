"""Channels of nim-sds peers (read at 07491b2): clock in seconds, history of 10, filters of two sizes, older builds."""

from __future__ import annotations

import pytest

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.sds import SdsChannel, SdsParameters
from reliable_channel.core.sds.events import Acknowledged, MessageRefused, MissingDependency
from reliable_channel.core.wire._pb import sds_pb2 as pb
from reliable_channel.core.wire.bloom import FilterFamily, FilterFormat
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily, decode_sds_message, encode_sds_message

NOW_S = 1_800_000_000
NOW = NOW_S * 1_000
NIM = SdsParameters().in_family(WireFamily.NIM)


def message(sds_id: str, lamport: int, *history: str, sender_id: str = "nim", filter_: bytes = b"") -> SdsMessage:
    named = tuple(HistoryEntry(one) for one in history)
    return SdsMessage(sender_id, sds_id, "talk", lamport, named, filter_ or None, (), b"text " + sds_id.encode())


def test_the_family_decides_about_filter_clock_and_history_together() -> None:
    nim, spec = (SdsParameters().in_family(family) for family in (WireFamily.NIM, WireFamily.SPEC))
    assert (nim.wire_family, nim.filter_format.family) == (WireFamily.NIM, FilterFamily.NIM)
    assert (nim.clock_unit_ms, nim.causal_history_size, nim.repair_t_max_ms) == (1_000, 10, 300_000)
    assert spec == SdsParameters()
    own = SdsParameters(causal_history_size=4, filter_format=FilterFormat(FilterFamily.NIM_MURMUR)).in_family(
        WireFamily.NIM
    )
    assert (own.causal_history_size, own.filter_format.family) == (4, FilterFamily.NIM_MURMUR)


def test_the_clock_counts_seconds() -> None:
    alice = SdsChannel("talk", "alice", NIM)
    sent = [alice.send(b"%d" % n, NOW + n).outgoing[0].message.lamport_timestamp for n in range(3)]
    assert sent == [NOW_S + 1, NOW_S + 2, NOW_S + 3]
    later = alice.send(b"later", NOW + 60_000).outgoing[0].message
    assert (later.lamport_timestamp, len(later.causal_history)) == (NOW_S + 60, 3)


@pytest.mark.parametrize(("ahead_s", "followed"), [(299, True), (300, True), (301, True), (100_000, False)])
def test_a_clock_in_seconds_cannot_be_driven_ahead_by_a_stranger(ahead_s: int, followed: bool) -> None:
    observer = SdsChannel("talk", None, NIM)
    observer.receive(message("m1", NOW_S), NOW)
    events = observer.receive(message("m2", NOW_S + ahead_s), NOW).events
    assert not any(isinstance(event, MessageRefused) for event in events)
    assert observer.clock == (NOW_S + ahead_s if followed else NOW_S)
    assert any(isinstance(event, MessageRefused) for event in observer.receive(message("m3", NOW), NOW).events)


def test_what_an_observer_sees_later_is_missing_and_not_before_its_observation() -> None:
    observer = SdsChannel("talk", None, NIM)
    observer.receive(message("m1", NOW_S), NOW + 900)
    events = observer.receive(message("m3", NOW_S + 2, "m2"), NOW + 2_000).events
    assert [event.message_id for event in events if isinstance(event, MissingDependency)] == ["m2"]


def test_a_participant_that_joins_does_not_miss_what_is_older() -> None:
    alice = SdsChannel("talk", "alice", NIM)
    alice.send(b"here", NOW + 500)
    events = alice.receive(message("m2", NOW_S, "m1"), NOW + 900).events
    assert not [event for event in events if isinstance(event, MissingDependency)]


def test_a_filter_that_has_grown_for_12_000_ids_acknowledges() -> None:
    grown = NIM.filter_format.other_size
    assert grown is not None
    assert (NIM.filter_format.bit_count, grown.bit_count, grown.hash_count) == (150_000, 180_000, 10)
    alice = SdsChannel("talk", "alice", NIM)
    ids = [alice.send(b"%d" % n, NOW).outgoing[0].message.message_id for n in range(20)]
    words = bytearray(grown.byte_count)
    grown.insert(words, ids[:10])
    acknowledged: list[set[str]] = []
    for number in range(3):
        heard = message(f"n{number}", NOW_S + 30 + number, filter_=grown.encode(words))
        events = alice.receive(heard, NOW + 1_000).events
        assert not any(isinstance(event, MessageRefused) for event in events)
        acknowledged.append({event.message_id for event in events if isinstance(event, Acknowledged)})
    assert acknowledged == [set(), set(ids[:10]), set()], "by two different messages, once"


def test_a_filter_of_any_other_size_is_refused() -> None:
    assert NIM.filter_format.of(b"\xff\xff") == NIM.filter_format
    strange = FilterFormat(FilterFamily.NIM, 11_000)
    assert isinstance(NIM.filter_format.decode(strange.encode(bytes(strange.byte_count))), Malformed)
    assert FilterFormat().other_size is None


@pytest.mark.parametrize("sender_id", ["", "nim"])
def test_messages_of_older_builds_and_of_release_0_4_are_read(sender_id: str) -> None:
    written = message("m1", NOW_S, "m0", sender_id=sender_id)
    complete = decode_sds_message(encode_sds_message(written, WireFamily.NIM), WireFamily.NIM)
    left_out = pb.NimMessage(
        message_id="m1",
        lamport_timestamp=NOW_S,
        causal_history=[pb.HistoryEntry(message_id="m0")],
        channel_id="talk",
        content=written.content,
    )
    if sender_id:
        left_out.sender_id = sender_id
    assert decode_sds_message(left_out.SerializeToString(), WireFamily.NIM) == complete == written
    observer = SdsChannel("talk", None, NIM)
    observer.receive(message("m0", NOW_S - 1), NOW)
    assert observer.receive(written, NOW).events
    spec = encode_sds_message(written)
    assert isinstance(decode_sds_message(spec), Malformed) is (not sender_id)


def test_a_clock_without_a_unit_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="clock_unit_ms"):
        SdsParameters(clock_unit_ms=0)
