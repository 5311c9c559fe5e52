"""Nobody's record changes what the ack job says of another one's: what SDS refused is remembered nowhere.

Honest senders are SDS channels; a stranger publishes whatever he likes under ids and names he has seen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reliable_channel.core.delivery import NOTE_CHARACTERS
from reliable_channel.core.sds import SdsChannel, SdsParameters
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.core.wire.hashing import sha256
from reliable_channel.core.wire.sds import HistoryEntry
from reliable_channel.lake.schema import Row
from reliable_channel.lake.tables import REPAIR_REQUESTS
from reliable_channel.pipeline.ack import observer
from reliable_channel.pipeline.ack.accepted_messages import sds_key
from reliable_channel.pipeline.ack.observer import ChannelObserver
from reliable_channel.pipeline.ack.output_rows import ChannelEvent, Delivery, RepairRequest
from reliable_channel.pipeline.ack.records import InputRow
from tests.support.ack_rows import KEY, NOW, PLACE, content_row
from tests.support.examples import examples

ALICES = b"pay Bob 10"
STRANGERS = b"pay Mallory 10 000"


def ephemeral_row(content: bytes, **fields: Any) -> InputRow:
    return content_row(content, sds_kind="ephemeral", lamport_timestamp=None, **fields)


def segment_row(sds_id: str, index: int, of: bytes, **fields: Any) -> InputRow:
    """A data segment of Alice's message of two segments ``of``; its content follows from both."""
    given = {"sds_id": sds_id, "segment_kind": "data", "segment_index": index, "data_count": 2} | fields
    return content_row(
        of + bytes([index]), entire_message_hash=sha256(of), **{"lamport_timestamp": NOW + index, **given}
    )


def completed_row(of: bytes, sds_ids: tuple[str, ...], **fields: Any) -> InputRow:
    given: dict[str, Any] = {"sender_id": "alice", "sds_id": sds_ids[0], "first_lamport_timestamp": NOW} | fields
    return InputRow(
        "completed",
        *PLACE,
        0,
        NOW * 1000,
        entire_message_hash=sha256(of),
        data_count=given.pop("data_count", len(sds_ids)),
        parity_count=0,
        sds_ids=sds_ids,
        payload_bytes=len(of),
        **given,
    )


def test_each_copy_of_a_sync_message_has_rows_of_its_requests() -> None:
    wanted = (HistoryEntry("wanted"), HistoryEntry("another"))
    sync = {"sender_id": "bob", "sds_id": "S", "sds_kind": "sync", "lamport_timestamp": NOW, "repair_request": wanted}
    rows = taken([InputRow("message", *PLACE, offset, NOW * 1000, **sync) for offset in (0, 1)])
    requests = [row for row in rows if isinstance(row, RepairRequest)]
    assert len(requests) == 4
    assert len({tuple(getattr(row, name) for name in REPAIR_REQUESTS.key) for row in requests}) == 4


def test_a_message_has_one_row_for_each_id_that_it_requests_however_often() -> None:
    wanted = tuple(HistoryEntry("wanted", None, sender) for sender in ("alice", "carol", None)) * 20
    sync = {"sender_id": "bob", "sds_id": "S", "sds_kind": "sync", "lamport_timestamp": NOW, "repair_request": wanted}
    rows = taken([InputRow("message", *PLACE, 0, NOW * 1000, **sync)])
    assert [(row.sds_id, row.sender_id) for row in rows if isinstance(row, RepairRequest)] == [("wanted", "alice")]


def taken(rows: list[InputRow], config: SdsParameters | None = None) -> list[Row]:
    """What an observer writes of rows that come one after the other; the state is stored after each."""
    observer = ChannelObserver(KEY, None, config or SdsParameters())
    results: list[Row] = []
    for offset, row in enumerate(rows):
        results += observer.take(row._replace(kafka_offset=offset, event_us=row.event_us + offset * 1000))
        observer = ChannelObserver.from_bytes(observer.to_bytes(), KEY, None, config or SdsParameters())
    return results


def messages(outputs: list[Row]) -> list[tuple[str, bytes, int]]:
    """Sender, hash and Kafka offset of every application message that was delivered."""
    rows = [o._asdict() for o in outputs if isinstance(o, Delivery) and o.row_kind == "message"]
    return [(row["sender_id"], row["entire_message_hash"], row["kafka_offset"]) for row in rows]


def hashed(content: bytes) -> bytes:
    return sha256(content)


WAITING = {"causal_history": (HistoryEntry("never came"),)}


@pytest.mark.parametrize(
    "strangers",
    [
        pytest.param(ephemeral_row(STRANGERS), id="an ephemeral message"),
        pytest.param(content_row(STRANGERS, lamport_timestamp=NOW + 10**9), id="a Lamport timestamp too far ahead"),
        pytest.param(
            content_row(STRANGERS, causal_history=(HistoryEntry("a"),) * 100_000), id="a history that is too long"
        ),
    ],
)
@pytest.mark.parametrize("sender_id", ["alice", "mallory"])
def test_what_sds_refuses_or_forgets_never_gives_another_message_its_payload(
    strangers: InputRow, sender_id: str
) -> None:
    delivered = messages(
        taken([content_row(b"first", sds_id="0"), strangers._replace(sender_id=sender_id), content_row(ALICES)])
    )
    assert [(sender, hash_, at) for sender, hash_, at in delivered if at == 2] == [("alice", hashed(ALICES), 2)]
    assert ("alice", hashed(STRANGERS), 1) not in delivered or strangers.sds_kind == "ephemeral"


def test_a_content_message_under_the_id_of_an_ephemeral_one_does_not_mute_it() -> None:
    rows = [content_row(STRANGERS, sender_id="mallory"), ephemeral_row(ALICES), ephemeral_row(ALICES)]
    assert messages(taken(rows)) == [("mallory", hashed(STRANGERS), 0), ("alice", hashed(ALICES), 1)]


def test_an_ephemeral_message_of_another_sender_or_content_is_no_copy() -> None:
    rows = [ephemeral_row(STRANGERS, sender_id="mallory"), ephemeral_row(STRANGERS), ephemeral_row(ALICES)]
    assert [(sender, at) for sender, _, at in messages(taken(rows))] == [("mallory", 0), ("alice", 1), ("alice", 2)]


def test_a_copy_of_an_ephemeral_message_is_none_however_many_others_send(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "MAX_EPHEMERALS", 8)
    strangers = [ephemeral_row(bytes([number]), sender_id="mallory") for number in range(40)]
    delivered = messages(taken([ephemeral_row(ALICES), *strangers, ephemeral_row(ALICES)]))
    assert [at for sender, _, at in delivered if sender == "alice"] == [0]


def test_messages_that_lose_their_ids_take_no_room_of_what_waits() -> None:
    """SDS never delivers them, so they were remembered until a waiting message was forgotten for them."""
    strangers: list[InputRow] = []
    for number in range(20):
        own = {"sds_id": f"S{number}"}
        strangers.append(content_row(STRANGERS, **own, sender_id=f"mallory {number}", **WAITING))
        strangers.append(content_row(b"the owner's", **own, sender_id="eve", id_verified=True))
    first = content_row(b"0", sds_id="0", lamport_timestamp=NOW - 10)
    late = content_row(b"late", sds_id="never came", lamport_timestamp=NOW - 1)
    delivered = messages(taken([first, content_row(ALICES, **WAITING), *strangers, late], SdsParameters(max_waiting=8)))
    assert ("alice", hashed(ALICES), 1) in delivered


def test_a_refused_second_message_of_an_id_does_not_change_what_waits() -> None:
    """Alice's message waits for a dependency when the stranger's comes."""
    rows = [
        content_row(ALICES, **WAITING),
        content_row(STRANGERS),
        content_row(b"late", sds_id="never came", lamport_timestamp=NOW - 1),
    ]
    delivered = messages(taken([content_row(b"0", sds_id="0", lamport_timestamp=NOW - 10), *rows]))
    assert [(hash_, at) for _, hash_, at in delivered if at in (1, 2)] == [(hashed(ALICES), 1)]


@pytest.mark.parametrize("strangers_ids", [("X",), ("X", "Y"), ("X", "X")])
@pytest.mark.parametrize("sender_id", ["alice", "mallory"])
@pytest.mark.parametrize("first", [True, False])
def test_a_segment_of_another_set_settles_nothing(strangers_ids: tuple[str, ...], sender_id: str, first: bool) -> None:
    """A stranger completes a set of his own under the ids of Alice's segments, before or after hers came."""
    strangers = [
        segment_row(sds_id, index, STRANGERS, sender_id=sender_id, data_count=len(strangers_ids))
        for index, sds_id in enumerate(strangers_ids)
    ]
    theirs = [completed_row(STRANGERS, strangers_ids, sender_id=sender_id), strangers[-1]]
    one, two = segment_row("X", 0, ALICES), segment_row("X2", 1, ALICES)
    rows = [one, *strangers[:-1], *theirs, completed_row(ALICES, ("X", "X2")), two]
    if not first:
        rows = [one, two, *strangers[:-1], *theirs]
        rows.insert(1, completed_row(ALICES, ("X", "X2")))
    found = messages(taken(rows))
    assert [(sender, hash_) for sender, hash_, _ in found if hash_ == hashed(ALICES)] == [("alice", hashed(ALICES))]
    assert all(hash_ == hashed(ALICES) for _, hash_, _ in found), "SDS accepted no segment of the stranger's set"


@pytest.mark.parametrize("names", [1, 20, 400])
def test_segments_of_messages_that_never_become_whole_mute_nobody_silently(
    names: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood between two segments of Alice's. Where its senders have no more each than one message may have, the
    oldest segments go, and her message is named."""
    monkeypatch.setattr(observer, "MAX_PARTS", 400)
    flood = [segment_row(f"f{n}", 0, b"%d" % n, sender_id=f"m{n % names}") for n in range(1_000)]
    one, two = segment_row("X", 0, ALICES), segment_row("X2", 1, ALICES)
    state, found = ChannelObserver(KEY, None, SdsParameters()), []
    for offset, row in enumerate([one, *flood, completed_row(ALICES, ("X", "X2")), two]):
        found += state.take(row._replace(kafka_offset=offset))
    told = [output._asdict() for output in found if isinstance(output, ChannelEvent)]
    assert {row["event"] for row in told} >= {"evicted"}
    if names == 1:
        assert [sender for sender, _, _ in messages(found)] == ["alice"]
        assert {row["sender_id"] for row in told} == {"m0"}
    else:
        assert messages(found) == []
        assert [row["sds_id"] for row in told if row["event"] == "pending_message_dropped"] == ["X"]


@st.composite
def hostile_rows(draw: st.DrawFn, ids: list[str]) -> InputRow:
    """Any kind of row under an id that is in use."""
    content = draw(st.sampled_from([STRANGERS, b"more of it", b"message 1"]))
    fields: dict[str, Any] = {
        "sender_id": draw(st.sampled_from(["alice", "bob", "mallory"])),
        "sds_id": draw(st.sampled_from(ids)),
        "causal_history": tuple(HistoryEntry(i) for i in draw(st.lists(st.sampled_from([*ids, "lost"]), max_size=3))),
    }
    match draw(st.sampled_from(["content", "ephemeral", "segment", "completed", "repaired"])):
        case "content":
            ahead = draw(st.sampled_from([-10_000, -1, 0, 1, 10**12]))
            return content_row(content, **{**fields, "lamport_timestamp": NOW + ahead})
        case "ephemeral":
            return ephemeral_row(content, **fields)
        case "segment":
            return segment_row(fields.pop("sds_id"), draw(st.integers(0, 1)), content, **fields)
        case "repaired":
            return content_row(content, **fields, repaired_by="parity")
    sds_ids = tuple(draw(st.lists(st.sampled_from(ids), min_size=1, max_size=3)))
    return completed_row(content, sds_ids, sender_id=fields["sender_id"], data_count=draw(st.integers(1, 3)))


@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_every_delivered_message_is_one_that_its_own_record_carried(data: st.DataObject) -> None:
    """Whatever comes in whatever order: the sender and the hash of a delivered message are those of the record it
    names, and the honest messages that came before the stranger's are delivered once."""
    alice = SdsChannel("talk", "alice", SdsParameters(repair=False))
    honest = []
    for number in range(data.draw(st.integers(1, 4))):
        content = f"message {number}".encode()
        sent = alice.send(content, NOW + number).outgoing[0].message
        fields = {"sds_id": sent.message_id, "lamport_timestamp": sent.lamport_timestamp}
        honest.append(content_row(content, **fields, causal_history=sent.causal_history))
    ids = [str(row.sds_id) for row in honest] + ["strangers"]
    rows = list(honest)
    for row in data.draw(st.lists(hostile_rows(ids), max_size=8)):
        rows.insert(data.draw(st.integers(0, len(rows))), row)
    found = messages(taken(rows))
    for sender, hash_, at in found:
        assert (rows[at].sender_id, rows[at].entire_message_hash) == (sender, hash_)
    first_hostile = next((at for at, row in enumerate(rows) if row not in honest), len(rows))
    for at in range(first_hostile):
        assert [found_at for _, hash_, found_at in found if found_at == at] == [at]


@pytest.mark.parametrize(
    ("fields", "verified"),
    [
        ({"id_verified": True}, True),
        ({"id_verified": False}, False),
        ({"id_verified": None}, False),
        ({"id_verified": True, "id_scheme": "keccak"}, True),
        ({"id_verified": True, "id_scheme": "keccak_content"}, False),
        ({"id_verified": True, "id_scheme": "sha256"}, False),
        ({"id_verified": True, "sds_id": sha256(ALICES).hex()}, False),
    ],
)
def test_a_sender_is_verified_only_by_an_id_that_was_made_of_it(fields: dict[str, Any], verified: bool) -> None:
    """An id that is the hash of the content alone fits every sender."""
    for row in (content_row(ALICES, **fields), ephemeral_row(ALICES, **fields)):
        (delivered,) = [output._asdict() for output in taken([row]) if isinstance(output, Delivery)]
        assert delivered["sender_verified"] is verified


@pytest.mark.parametrize("second", [True, False])
def test_the_sender_of_a_rebuilt_message_is_verified_if_all_its_segments_are(second: bool) -> None:
    rows = [segment_row("X", 0, ALICES, id_verified=True), completed_row(ALICES, ("X", "Y"))]
    rows.append(segment_row("Y", 1, ALICES, id_verified=second))
    found = [o._asdict() for o in taken(rows) if isinstance(o, Delivery) and o.row_kind == "message"]
    assert [row["sender_verified"] for row in found] == [second]


def test_the_lost_ids_of_a_segment_stay_in_the_state_of_its_channel_only_in_part() -> None:
    """A stranger's history fills an envelope, and thousands of segments wait for the others of their messages."""
    config = SdsParameters(timeout_for_lost_messages_ms=1000)
    channel = ChannelObserver(KEY, None, config)
    channel.take(content_row(b"first", sds_id="0", lamport_timestamp=NOW - 10))
    named = [tuple(f"{number} {i:03}" + "x" * 100 for i in range(500)) for number in range(10)]
    for number, ids in enumerate(named):
        history = tuple(HistoryEntry(sds_id) for sds_id in ids)
        channel.take(segment_row(f"X{number}", 0, b"%d" % number, causal_history=history))
    channel.take(content_row(b"later", sds_id="1")._replace(event_us=(NOW + 100_000) * 1000))
    proto = pb.ObserverStateProto.FromString(channel.to_bytes())
    parts = dict(zip(proto.parts.keys, proto.parts.seen, strict=True))
    for number, ids in enumerate(named):
        kept = pb.SeenProto.FromString(parts[sds_key(f"X{number}", "alice")]).lost
        assert kept and kept == [*ids[-len(kept) :]]
        assert len("".join(kept)) <= NOTE_CHARACTERS
