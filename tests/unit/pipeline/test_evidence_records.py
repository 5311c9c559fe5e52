"""Evidence records become rows, each once, and nothing that somebody writes into the topic raises."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Transaction, write_deltalake
from hypothesis import example, given
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.evidence import intake
from reliable_channel.evidence.intake import (
    Collected,
    EvidenceRecord,
    convert_record,
    name_source,
    read_position,
    write,
)
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.read import dataset_of, open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.messaging.sender_events import LossReport, SenderEvent, SenderEventKind, to_json
from reliable_channel.transport.base import Source
from reliable_channel.transport.bridge_state import BridgeGap
from reliable_channel.transport.evidence import gap_record, sightings_record
from tests.support import error_page

TOPIC = "waku.evidence"
AT_MS = 1_767_225_600_000
CHANNEL = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/app/1/x/proto", "channel_id": "c"}


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    found = PathSettings(run_dir=str(tmp_path))
    assert read_position(found, TOPIC, 0) == 0  # creates the tables
    return found


def sender_record(number: int) -> bytes:
    event = SenderEvent(
        SenderEventKind.QUEUED,
        AT_MS,
        "r1",
        **CHANNEL,
        sds_id=f"m{number}",
        envelope_hash=b"h" * 32,
    )
    value = to_json(event)
    return value if isinstance(value, bytes) else value.encode()


def test_what_senders_and_the_bridge_write_is_taken(paths: PathSettings) -> None:
    gap = BridgeGap(from_ms=AT_MS, to_ms=AT_MS + 60_000, cause="bridge_restart")
    _, gap_value = gap_record(gap, "unfilled", "http://node", [("/waku/2/rs/1/0", None)], AT_MS + 61_000)
    records = [EvidenceRecord(0, 0, sender_record(0)), EvidenceRecord(0, 1, gap_value), EvidenceRecord(0, 2, b"noise")]
    assert write(paths, TOPIC, records, "waku.envelopes") == Collected(2, 1, "partition 0, offset 2"), (
        "noise is counted"
    )
    (event,) = rows_of(open_table(paths, tables.SENDER_EVENTS))
    assert (event["event"], event["sds_id"], event["envelope_hash"]) == ("queued", "m0", b"h" * 32)
    (row,) = rows_of(open_table(paths, tables.SOURCE_GAPS))
    assert (row["name"], row["status"], row["cause"]) == (gap.name, "unfilled", "bridge_restart")
    assert int(row["from_time"].timestamp() * 1000) == AT_MS


def test_a_topic_that_was_created_anew_is_read_from_its_beginning(paths: PathSettings) -> None:
    first = name_source(paths, TOPIC, "id-1", {0: 2})
    write(paths, first, [EvidenceRecord(0, offset, sender_record(offset)) for offset in range(2)], "waku.envelopes")
    assert read_position(paths, name_source(paths, TOPIC, "id-1", {0: 5}), 0) == 2
    anew = name_source(paths, TOPIC, "id-2", {0: 5})  # longer than the first
    assert read_position(paths, anew, 0) == 0
    assert write(paths, anew, [EvidenceRecord(0, 0, sender_record(9))], "waku.envelopes").written == 1
    assert [row["sds_id"] for row in rows_of(open_table(paths, tables.SENDER_EVENTS))].count("m9") == 1


@pytest.mark.parametrize("topic_id", ["", "id-1"], ids=["a broker without ids", "an id"])
def test_a_topic_that_ends_before_what_was_read_is_refused(paths: PathSettings, topic_id: str) -> None:
    source = name_source(paths, TOPIC, topic_id, {0: 2})
    write(paths, source, [EvidenceRecord(0, offset, sender_record(offset)) for offset in range(2)], "waku.envelopes")
    assert name_source(paths, TOPIC, topic_id, {0: 2}) == source
    with pytest.raises(ConfigurationError) as fault:
        name_source(paths, TOPIC, topic_id, {0: 1})
    assert error_page.pattern_of("A topic that was recreated").fullmatch(str(fault.value))


def test_a_loss_is_a_row_for_each_segment_that_was_held(paths: PathSettings) -> None:
    report = LossReport(
        at_ms=AT_MS,
        reported_by="bob",
        pubsub_topic="/waku/2/rs/1/0",
        content_topic="/app/1/x/proto",
        channel_id="talk",
        sender_id="alice",
        entire_message_hash=b"\xab" * 32,
        sds_ids=("a", "b", "a"),
        data_count=3,
        reason="expired",
        detail="2 of 3",
    )
    assert write(paths, TOPIC, [EvidenceRecord(0, 0, to_json(report))], "waku.envelopes").written == 1
    rows = rows_of(open_table(paths, tables.SENDER_EVENTS))
    assert sorted(row["sds_id"] for row in rows) == ["a", "b"]
    facts = {(row["event"], row["sender_id"], row["reported_by"], row["detail"]) for row in rows}
    assert facts == {("lost", "alice", "bob", "expired: 2 of 3")}
    assert {row["entire_message_hash"] for row in rows} == {b"\xab" * 32}


def test_a_loss_with_odd_ids_or_by_nobody_is_read_as_far_as_it_can_be() -> None:
    said = {**CHANNEL, "kind": "loss", "at_ms": AT_MS, "reported_by": "bob", "sds_ids": ["c", 7, "", None]}
    odd = convert_record(EvidenceRecord(0, 1, json.dumps(said).encode()), "waku.envelopes")
    assert odd is not None
    assert [row["sds_id"] for row in odd[1]] == ["c"]
    assert (
        convert_record(EvidenceRecord(0, 1, json.dumps({**said, "reported_by": None}).encode()), "waku.envelopes")
        is None
    )


def test_a_loss_becomes_no_more_rows_than_a_record_has_honest_ids() -> None:
    """A record of 64 KiB has room for thousands of short ids, and each row repeats up to 10 KiB of its texts."""
    said = {
        **CHANNEL,
        "kind": "loss",
        "at_ms": AT_MS,
        "reported_by": "bob",
        "sds_ids": [f"{n:x}" for n in range(7_000)],
    }
    made = convert_record(EvidenceRecord(0, 1, json.dumps(said).encode()), "waku.envelopes")
    assert made is not None
    assert len(made[1]) == intake.MAX_IDS


def test_a_gap_is_updated_while_others_write_the_table(paths: PathSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    def written(offset: int, status: str) -> None:
        gap = BridgeGap(AT_MS, AT_MS + 60_000, "node_unreachable", offset)
        _, value = gap_record(gap, status, "http://node", [("/waku/2/rs/1/0", None)], AT_MS)
        write(paths, TOPIC, [EvidenceRecord(0, offset, value)], "waku.envelopes")

    written(0, "open")
    others = [{**row, "name": "another gap"} for row in rows_of(open_table(paths, tables.SOURCE_GAPS))]

    def and_meanwhile_another_writes(paths: PathSettings, table: tables.Table) -> DeltaTable:
        found = open_table(paths, table)
        if table is tables.SOURCE_GAPS and others:
            write_deltalake(open_table(paths, table), as_arrow([others.pop()], table), mode="append")
        return found

    monkeypatch.setattr(intake, "_read_position_of", lambda *_: 1)
    monkeypatch.setattr(intake, "open_to_write", and_meanwhile_another_writes)
    written(1, "filled")
    found = {row["name"]: row["status"] for row in rows_of(open_table(paths, tables.SOURCE_GAPS))}
    assert len(found) == 2 and "filled" in found.values() and not others


def test_a_gap_is_one_row_however_often_stores_were_asked_for_it(paths: PathSettings) -> None:
    offset = 0
    for attempts, status in ((0, "open"), (1, "open"), (2, "open"), (3, "filled")):
        gap = BridgeGap(AT_MS, AT_MS + 60_000, "node_unreachable", attempts)
        _, value = gap_record(gap, status, "http://node", [("/waku/2/rs/1/0", None)], AT_MS, vantage="north")
        _, other = gap_record(gap, "open", "http://other", [("/waku/2/rs/1/0", None)], AT_MS, vantage="south")
        write(paths, TOPIC, [EvidenceRecord(0, offset, value), EvidenceRecord(0, offset + 1, other)], "waku.envelopes")
        offset += 2
    assert read_position(paths, TOPIC, 0) == offset
    rows = {row["vantage"]: row for row in rows_of(open_table(paths, tables.SOURCE_GAPS))}
    assert len(rows_of(open_table(paths, tables.SOURCE_GAPS))) == 2
    assert (rows["north"]["status"], rows["north"]["attempts"]) == ("filled", 3)
    assert (rows["south"]["status"], rows["south"]["cause"]) == ("open", "node_unreachable")


def test_what_two_bridges_saw_is_a_row_for_each_of_them(paths: PathSettings) -> None:
    seen = [
        sightings_record("north", "http://a", Source.RELAY, "/waku/2/rs/1/0", [b"1" * 32, b"2" * 32], AT_MS),
        sightings_record("south", "http://b", Source.STORE, "/waku/2/rs/1/0", [b"1" * 32], AT_MS + 1),
    ]
    records = [EvidenceRecord(0, offset, value) for offset, (_, value) in enumerate(seen)]
    for _ in range(2):
        write(paths, TOPIC, records, "waku.envelopes")
    rows = rows_of(open_table(paths, tables.SIGHTINGS))
    assert sorted((row["vantage"], row["node"], row["source"], row["message_hash"][:1]) for row in rows) == [
        ("north", "http://a", "relay", b"1"),
        ("north", "http://a", "relay", b"2"),
        ("south", "http://b", "store", b"1"),
    ]


def test_a_record_is_taken_once_however_often_it_is_read(paths: PathSettings) -> None:
    records = [EvidenceRecord(0, number, sender_record(number)) for number in range(3)]
    write(paths, TOPIC, records[:2], "waku.envelopes")
    assert read_position(paths, TOPIC, 0) == 2
    write(paths, TOPIC, records, "waku.envelopes")
    found = dataset_of(open_table(paths, tables.SENDER_EVENTS)).to_table()["sds_id"].to_pylist()
    assert sorted(found) == ["m0", "m1", "m2"]


def test_records_of_many_rows_are_written_in_parts(paths: PathSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "ROWS_AT_ONCE", 4)
    at_once: list[int] = []

    def count_rows(paths: PathSettings, table: tables.Table, rows: pa.Table, transaction: Transaction) -> None:
        at_once.append(rows.num_rows)
        append_rows(paths, table, rows, transaction)

    monkeypatch.setattr(intake, "append_rows", count_rows)
    values = [
        sightings_record("north", "http://a", Source.RELAY, "/p", [bytes([n, m] * 16) for m in range(3)], AT_MS + n)
        for n in range(5)
    ]
    records = [EvidenceRecord(0, offset, value) for offset, (_, value) in enumerate(values)]
    for _ in range(2):
        assert write(paths, TOPIC, records, "waku.envelopes").written == 5
        assert read_position(paths, TOPIC, 0) == 5
    assert len({row["message_hash"] for row in rows_of(open_table(paths, tables.SIGHTINGS))}) == 15
    assert sum(at_once) == 15
    assert max(at_once) == 6


def test_a_record_is_taken_once_after_a_crash_between_two_tables(
    paths: PathSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the next run gets fewer records at a time than the one that was killed."""

    def be_killed(paths: PathSettings, table: tables.Table, rows: pa.Table, transaction: Transaction) -> None:
        if table is tables.SIGHTINGS:
            raise KeyboardInterrupt
        append_rows(paths, table, rows, transaction)

    records = [EvidenceRecord(0, number, sender_record(number)) for number in range(5)]
    monkeypatch.setattr(intake, "append_rows", be_killed)
    with pytest.raises(KeyboardInterrupt):
        write(paths, TOPIC, records, "waku.envelopes")
    monkeypatch.undo()
    assert read_position(paths, TOPIC, 0) == 0
    write(paths, TOPIC, records[:3], "waku.envelopes")
    write(paths, TOPIC, records[3:], "waku.envelopes")
    assert read_position(paths, TOPIC, 0) == 5
    assert sorted(row["sds_id"] for row in rows_of(open_table(paths, tables.SENDER_EVENTS))) == [
        f"m{number}" for number in range(5)
    ]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
VALID = [
    {"kind": "sender", "at_ms": AT_MS, "event": "sent", "sds_id": "m0", "envelope_hash": "ab" * 32, **CHANNEL},
    {"kind": "loss", "at_ms": AT_MS, "reported_by": "bob", "sds_ids": ["m0"], **CHANNEL},
    {"kind": "gap", "at_ms": AT_MS, "from_ms": AT_MS, "to_ms": AT_MS, "name": "g", "status": "filled", "vantage": "n"}
    | {"cause": "cache_full", "attempts": 1, "stores": {"s": "complete"}, "content_topics": ["/a"]},
    {"kind": "sightings", "at_ms": AT_MS, "vantage": "north", "source": "relay", "hashes": ["ab" * 32], "node": "n"},
]


ODD = [None, True, -1, 10**400, 0.5, "", "x", [], [[]], [None], {}, {"s": []}]


@pytest.mark.parametrize(("valid", "field"), [(valid, field) for valid in VALID for field in valid])
def test_no_record_with_one_odd_field_raises(valid: dict[str, object], field: str) -> None:
    for fields in (valid, *({**valid, field: odd} for odd in ODD)):
        read = convert_record(EvidenceRecord(0, 0, json.dumps(fields).encode()), "waku.envelopes")
        assert read is None or as_arrow(read[1], read[0]).num_rows
        assert read is not None or fields is not valid


@given(st.sampled_from(VALID), st.dictionaries(st.sampled_from([*{*chain(*VALID)}]), json_values))
def test_no_record_raises(valid: dict[str, object], odd: dict[str, object]) -> None:
    read = convert_record(EvidenceRecord(0, 0, json.dumps({**valid, **odd}).encode()), "waku.envelopes")
    if read is not None:
        as_arrow(read[1], read[0])


def test_an_envelope_that_a_node_gave_twice_is_one_sighting() -> None:
    _, value = sightings_record("north", "http://a", Source.RELAY, "/p", [b"1" * 32, b"2" * 32, b"1" * 32], AT_MS)
    sightings = convert_record(EvidenceRecord(0, 1, value), "waku.envelopes")
    assert sightings is not None and [row["message_hash"] for row in sightings[1]] == [b"1" * 32, b"2" * 32]


@pytest.mark.parametrize("text", ["", "0" * 63, " " * 64, "00" * 31 + "  ", "x" * 64])
def test_what_is_no_hash_is_left_out(text: str) -> None:
    said = {**VALID[0], "envelope_hash": text}
    found = convert_record(EvidenceRecord(0, 1, json.dumps(said).encode()), "waku.envelopes")
    assert found is not None and found[1][0]["envelope_hash"] is None


@pytest.mark.parametrize(
    "odd",
    [{"event": "Sent"}, {"event": "lost"}, {"at_ms": AT_MS // 1000}, {"at_ms": AT_MS * 1000}, {"pubsub_topic": ""}],
)
def test_a_record_with_an_unknown_event_a_time_in_other_units_or_no_channel_is_refused(odd: dict[str, object]) -> None:
    """Such a row would be in the table, and no verdict would count it: nobody would ever find out."""
    assert convert_record(EvidenceRecord(0, 1, json.dumps({**VALID[0], **odd}).encode()), "waku.envelopes") is None


def test_hashes_as_nodes_write_them_are_read_and_empty_texts_are_absent() -> None:
    said = {**VALID[0], "envelope_hash": "0x" + "AB" * 32, "sds_id": "", "sender_id": ""}
    found = convert_record(EvidenceRecord(0, 1, json.dumps(said).encode()), "waku.envelopes")
    assert found is not None
    (row,) = found[1]
    assert (row["envelope_hash"], row["sds_id"], row["sender_id"]) == (b"\xab" * 32, None, None)


@given(st.binary(max_size=100))
def test_no_bytes_raise(value: bytes) -> None:
    assert convert_record(EvidenceRecord(0, 0, value), "waku.envelopes") is None or value.startswith(b"{")


@given(
    kind=st.sampled_from(["sender", "dispatch", "gap"]),
    name=st.sampled_from(["event", "detail", "sds_id", "channel_id", "name", "vantage"]),
    text=st.text(st.one_of(st.characters(), st.sampled_from(["\ud800", "\udfff"])), max_size=5),
)
@example(kind="sender", name="detail", text="half of a pair: \ud800")
def test_every_row_that_a_record_gives_can_be_stored(kind: str, name: str, text: str) -> None:
    """JSON can write half of a surrogate pair, UTF-8 cannot: such a record would keep all evidence out for good."""
    said = {
        **CHANNEL,
        "kind": kind,
        "at_ms": AT_MS,
        "to_ms": AT_MS,
        "status": "open",
        "event": "sent",
        "name": "gap",
        name: text,
    }
    found = convert_record(EvidenceRecord(0, 1, json.dumps(said).encode()), "waku.envelopes")
    if found is not None:
        assert as_arrow(found[1], found[0]).num_rows == len(found[1])


@pytest.mark.parametrize("name", ["c" * 70, "\\' or true --", "\U0010ffff" * 900, "a\x00b"])
def test_a_gap_that_is_replaced_hides_nothing_from_a_filter(paths: PathSettings, name: str) -> None:
    for offset, (title, status) in enumerate([("other", "open"), (name, "open"), (name, "filled")]):
        value = {"kind": "gap", "name": title, "status": status, "to_ms": AT_MS, "vantage": "north"}
        write(paths, TOPIC, [EvidenceRecord(0, offset, json.dumps(value).encode())], "waku.envelopes")
    data = dataset_of(open_table(paths, tables.SOURCE_GAPS))
    assert data.to_table(filter=pc.field("name") == f"north/{name}")["status"].to_pylist() == ["filled"]
    assert data.to_table(filter=pc.field("name") == "north/other")["status"].to_pylist() == ["open"]
    assert data.count_rows() == 2
