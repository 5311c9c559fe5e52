"""The refetch loop without Spark: real Delta tables, store nodes in memory, Kafka as a list."""

from __future__ import annotations

import datetime as dt
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from reliable_channel.config import Settings, StoreAuditSettings, load
from reliable_channel.config.channels import ChannelsSettings, ChannelTopic
from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsMessage, WireFamily, decode_in_families, encode_sds_message
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, encode_waku_message, message_hash
from reliable_channel.evidence.audit import compute_threshold
from reliable_channel.evidence.delta_source import DeltaSource
from reliable_channel.evidence.refetch import RefetchResult, find_pause, refetch
from reliable_channel.evidence.requests import find_open_requests
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.transport.base import hash_candidates, list_hashes
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.store.client import RetryPolicy, StoreClient
from reliable_channel.transport.store.model import StoreEntry, StorePage, StoreQuery
from reliable_channel.transport.store.rest_node import RestStoreNode, StoreFault, StoreNodeError
from reliable_channel.transport.store.server import create_app
from reliable_channel.transport.store.source import MemorySource, read_page
from tests.support.examples import examples
from tests.support.http_server import running

PUBSUB, TOPIC = "/waku/2/rs/1/0", "/reliable-channel/1/chat/proto"
START_S = 1_767_225_600


def carrying(channel_id: str, sds_id: str = "m1", content: bytes = b"hi", topic: str = TOPIC) -> WakuMessage:
    """An envelope with an SDS message of Alice."""
    data = encode_sds_message(SdsMessage("alice", sds_id, channel_id, START_S * 1_000, content=content))
    return WakuMessage(data, topic, timestamp=START_S * 10**9)


STORED = carrying("talk")
LOST = WakuMessage(b"nobody stored it", TOPIC, timestamp=START_S * 10**9)


class MemoryNode:
    """A store node in this process; ``broken`` gives no page."""

    def __init__(self, name: str, *messages: WakuMessage, broken: bool = False) -> None:
        self.name = name
        self._source = MemorySource()
        for message in messages:
            self._source.add(PUBSUB, message)
        self._broken = broken
        self.asked = 0

    def query(self, query: StoreQuery) -> StorePage:
        self.asked += 1
        if self._broken:
            raise StoreNodeError(self.name, StoreFault.UNREACHABLE, "off")
        return read_page(self._source, query, self.name)

    def close(self) -> None:
        return None


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


def settings_in(place: Path) -> Settings:
    """A configuration with empty tables under ``place``."""
    found = load("local", paths={"run_dir": str(place)})
    create_tables(found.paths, (tables.REFETCH_REQUESTS, tables.SDS_MESSAGES, tables.ENVELOPES, tables.SOURCE_GAPS))
    return found


def request(
    settings: Settings,
    sds_id: str,
    message: WakuMessage,
    attempt: int = 1,
    hint: bytes | None = None,
    channel_id: str = "talk",
    after_s: int = 0,
) -> None:
    row = {
        "pubsub_topic": PUBSUB,
        "content_topic": message.content_topic,
        "channel_id": channel_id,
        "sds_id": sds_id,
        "retrieval_hint": hint if hint is not None else message_hash(PUBSUB, message),
        "attempt": attempt,
        "event_time": (START_S + after_s) * 10**6,
    }
    append_rows(settings.paths, tables.REFETCH_REQUESTS, as_arrow([row], tables.REFETCH_REQUESTS))


def run(settings: Settings, *nodes: MemoryNode) -> tuple[RefetchResult, list[StoreEntry]]:
    written: list[StoreEntry] = []

    def write_back(entries: Sequence[StoreEntry]) -> None:
        written.extend(entries)

    client = StoreClient(nodes, RetryPolicy(attempts=1), sleep=lambda _: None)
    return refetch(settings, client, write_back), written


def presence(settings: Settings) -> dict[tuple[str, Any], str]:
    rows = rows_of(open_table(settings.paths, tables.STORE_PRESENCE))
    return {(row["node"], row["sds_id"]): row["outcome"] for row in rows}


def test_what_a_store_has_goes_back_to_kafka_and_each_node_is_recorded(settings: Settings) -> None:
    request(settings, "m1", STORED)
    request(settings, "m2", LOST)
    outcome, written = run(settings, MemoryNode("a", STORED), MemoryNode("b"), MemoryNode("c", broken=True))
    assert [entry.message for entry in written] == [STORED]
    assert outcome == RefetchResult(requests=2, gaps=0, written=1)
    assert presence(settings) == {
        ("a", "m1"): "present",
        ("a", "m2"): "absent",
        ("b", "m1"): "absent",
        ("b", "m2"): "absent",
        ("c", "m1"): "error",
        ("c", "m2"): "error",
    }


@hypothesis_settings(max_examples=examples(15), deadline=None)
@given(junk=st.lists(st.binary(max_size=80), max_size=5))
def test_a_hint_of_any_bytes_spoils_no_other_question(junk: list[bytes]) -> None:
    """Hints are other people's words: those that can be no message hash count as none."""
    with tempfile.TemporaryDirectory() as place:
        settings = settings_in(Path(place))
        request(settings, "m1", STORED)
        for number, hint in enumerate(junk):
            request(settings, f"junk{number}", LOST, hint=hint)
        request(settings, "m2", STORED, attempt=1, hint=b"")
        outcome, written = run(settings, MemoryNode("a", STORED))
        assert [entry.message for entry in written] == [STORED]
        assert outcome.requests == 2 + len(junk)


def test_an_attempt_is_asked_once_and_a_new_attempt_again(settings: Settings) -> None:
    request(settings, "m2", LOST)
    node = MemoryNode("a")
    run(settings, node)
    run(settings, node)
    assert node.asked == 1
    request(settings, "m2", LOST, attempt=2)
    outcome, _ = run(settings, node)
    assert (node.asked, outcome.requests) == (2, 1)


def test_the_same_channel_and_sds_id_on_another_content_topic_is_another_message(settings: Settings) -> None:
    """Strangers repeat what they heard on a topic of their own: that was asked for, and the message itself never."""
    request(settings, "m1", WakuMessage(b"strangers", f"{TOPIC}/of-strangers", timestamp=START_S * 10**9))
    node = MemoryNode("a", STORED)
    run(settings, node)
    request(settings, "m1", STORED)
    outcome, written = run(settings, node)
    assert (outcome.requests, [entry.message for entry in written]) == (1, [STORED])


def test_the_same_sds_id_in_another_channel_is_not_what_a_request_without_a_hint_asks_for(settings: Settings) -> None:
    request(settings, "m1", STORED, hint=b"")
    outcome, written = run(settings, MemoryNode("a", carrying("strangers")))
    assert (outcome.requests, written, set(presence(settings).values())) == (1, [], {"absent"})
    request(settings, "m1", STORED, attempt=2, hint=b"")
    outcome, written = run(settings, MemoryNode("a", carrying("strangers"), carrying("talk")))
    assert [entry.message for entry in written] == [carrying("talk")]


@pytest.mark.parametrize(
    "other",
    [
        carrying("talk", "m2"),
        carrying("strangers"),
        carrying("talk", topic="/reliable-channel/1/files/proto"),
        WakuMessage(b"of no SDS", TOPIC, timestamp=START_S * 10**9),
    ],
    ids=["SDS id", "channel", "content topic", "no SDS message"],
)
def test_a_hint_that_leads_to_another_message_says_nothing_of_the_one_that_is_missing(
    settings: Settings, other: WakuMessage
) -> None:
    """A stranger names the missing message with the hash of an envelope that stores have. The message would count as
    present there, and never be told missing."""
    request(settings, "m1", STORED, hint=message_hash(PUBSUB, other))
    outcome, written = run(settings, MemoryNode("a", other), MemoryNode("b"))
    assert (outcome.requests, written) == (1, [])
    assert presence(settings) == {("a", "m1"): "error", ("b", "m1"): "error"}
    request(settings, "m1", STORED, attempt=2)
    outcome, written = run(settings, MemoryNode("a", other, STORED))
    assert [entry.message for entry in written] == [STORED]
    rows = rows_of(open_table(settings.paths, tables.STORE_PRESENCE))
    assert {(row["message_hash"], row["outcome"]) for row in rows if row["node"] == "a"} == {
        (message_hash(PUBSUB, other), "error"),
        (message_hash(PUBSUB, STORED), "present"),
    }


def test_an_encrypted_envelope_that_a_hint_leads_to_is_fetched_and_proves_nothing(settings: Settings) -> None:
    """Nobody can tell here what is in it. When it is the missing message, that comes."""
    topic = ChannelTopic(content_topic=TOPIC, decryption_key_files=("a key",))
    sealed = settings.model_copy(update={"channels": ChannelsSettings(content_topics=(topic,))})
    request(sealed, "m1", STORED)
    request(sealed, "m2", STORED, hint=message_hash(PUBSUB, STORED))
    _, written = run(sealed, MemoryNode("a", STORED), MemoryNode("b"))
    assert [entry.message for entry in written] == [STORED]
    rows = rows_of(open_table(sealed.paths, tables.STORE_PRESENCE))
    assert {(row["node"], row["sds_id"], row["outcome"], row["detail"]) for row in rows} == {
        *(("a", name, "present", "unproven") for name in ("m1", "m2")),
        *(("b", name, "absent", None) for name in ("m1", "m2")),
    }


def test_a_channel_that_misses_much_delays_no_other(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reliable_channel.evidence.requests.MAX_REQUESTS", 3)
    for number in range(5):
        request(settings, f"0{number}", LOST, channel_id="strangers")
    request(settings, "m1", STORED)
    outcome, written = run(settings, MemoryNode("a", STORED))
    assert (outcome.requests, [entry.message for entry in written]) == (3, [STORED])


def test_new_channels_of_strangers_delay_no_older_request(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their first requests came before every further one, as long as there were enough of them."""
    monkeypatch.setattr("reliable_channel.evidence.requests.MAX_REQUESTS", 3)
    for number in range(5):
        request(settings, f"0{number}", LOST, channel_id=f"strangers {number}", after_s=60)
    request(settings, "m1", STORED, attempt=2)
    assert [entry.message for entry in run(settings, MemoryNode("a", STORED))[1]] == [STORED]


def test_what_has_come_meanwhile_is_not_asked_for(settings: Settings) -> None:
    request(settings, "m1", STORED)
    row = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 1, "sds_id": "m1", "channel_id": "talk"}
    row |= {"pubsub_topic": PUBSUB, "content_topic": TOPIC}
    append_rows(settings.paths, tables.SDS_MESSAGES, as_arrow([row], tables.SDS_MESSAGES))
    outcome, _ = run(settings, MemoryNode("a", STORED))
    assert outcome.requests == 0


def lost_of_kafka(settings: Settings, cause: str = "offset_jump") -> None:
    """A gap of two minutes around the start, and an envelope before it."""
    at = dt.datetime.fromtimestamp(START_S, dt.UTC)
    gap = {
        "kafka_topic": "t",
        "kafka_partition": 0,
        "first_offset": 5,
        "last_offset": 9,
        "cause": cause,
        "name": "t/0/5",
        "status": "open",
        "from_time": int((at - dt.timedelta(seconds=60)).timestamp() * 10**6),
        "to_time": int((at + dt.timedelta(seconds=60)).timestamp() * 10**6),
    }
    append_rows(settings.paths, tables.SOURCE_GAPS, as_arrow([gap], tables.SOURCE_GAPS))
    envelope = {
        "kafka_topic": "t",
        "kafka_partition": 0,
        "kafka_offset": 4,
        "pubsub_topic": PUBSUB,
        "content_topic": TOPIC,
        "message_hash": message_hash(PUBSUB, LOST),
    }
    append_rows(settings.paths, tables.ENVELOPES, as_arrow([envelope], tables.ENVELOPES))


@pytest.mark.parametrize("cause", ["offset_jump", "compaction"])
def test_a_gap_is_filled_by_its_time_range_once(settings: Settings, cause: str) -> None:
    lost_of_kafka(settings, cause)
    outside = WakuMessage(b"an hour later", TOPIC, timestamp=(START_S + 3_600) * 10**9)
    node = MemoryNode("a", STORED, LOST, outside)
    outcome, written = run(settings, node)
    assert [entry.message for entry in written] == [STORED], "inside the gap and not here yet"
    assert outcome == RefetchResult(requests=0, gaps=1, written=1)
    assert run(settings, node)[0] == RefetchResult()


def test_a_gap_for_which_every_store_failed_is_asked_for_again(settings: Settings) -> None:
    lost_of_kafka(settings)
    down = MemoryNode("a", broken=True), MemoryNode("b", broken=True)
    assert run(settings, *down) == (RefetchResult(gaps=1), [])
    outcome, written = run(settings, MemoryNode("a", STORED), MemoryNode("b", broken=True))
    assert [entry.message for entry in written] == [STORED]
    assert outcome == RefetchResult(gaps=1, written=1)
    assert run(settings, *down)[0] == RefetchResult(), "one node has answered"


def test_a_gap_is_asked_for_again_while_no_store_answers_for_one_of_its_pubsub_topics(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two shards may have one content topic; it was enough that a store answered for one of them."""
    lost_of_kafka(settings)
    row = {"kafka_topic": "t", "kafka_partition": 0, "kafka_offset": 3, "pubsub_topic": "/waku/2/rs/1/1"}
    envelope = as_arrow([{**row, "content_topic": TOPIC, "message_hash": bytes(32)}], tables.ENVELOPES)
    append_rows(settings.paths, tables.ENVELOPES, envelope)
    node = MemoryNode("a", STORED)
    answer = node.query

    def fail_for_one(query: StoreQuery) -> StorePage:
        if query.pubsub_topic == row["pubsub_topic"]:
            raise StoreNodeError("a", StoreFault.UNREACHABLE, "off")
        return answer(query)

    monkeypatch.setattr(node, "query", fail_for_one)
    assert run(settings, node)[0].gaps == 1
    assert run(settings, node)[0].gaps == 1
    monkeypatch.undo()
    assert run(settings, node)[0].gaps == 1
    assert run(settings, node)[0] == RefetchResult()


def answer_at(settings: Settings, *rows: tuple[float, str, str | None]) -> None:
    """Rows of ``store_presence``: how many seconds ago, outcome and detail."""
    now_us = time.time_ns() // 1000
    made = [
        {
            "node": "a",
            "purpose": "refetch",
            "outcome": outcome,
            "detail": detail,
            "asked_at": now_us - int(ago_s * 10**6),
        }
        for ago_s, outcome, detail in rows
    ]
    create_tables(settings.paths, (tables.STORE_PRESENCE,))
    append_rows(settings.paths, tables.STORE_PRESENCE, as_arrow(made, tables.STORE_PRESENCE))


def test_stores_that_fail_for_an_hour_are_asked_every_five_minutes(settings: Settings) -> None:
    request(settings, "m1", STORED)
    answer_at(settings, (7_200, "absent", None), (3_600, "error", "busy"), (60, "error", "unreachable"))
    node = MemoryNode("a", STORED)
    outcome, written = run(settings, node)
    assert (node.asked, written, outcome.requests) == (0, [], 0)
    assert outcome.pause is not None
    assert outcome.pause.until - outcome.pause.since == dt.timedelta(seconds=3_600 - 60 + 300)
    assert str(outcome).startswith("no store node has answered since ")


def test_another_store_node_is_asked_at_once(settings: Settings) -> None:
    request(settings, "m1", STORED)
    answer_at(settings, (3_600, "error", "busy"), (60, "error", "unreachable"))
    assert run(settings, MemoryNode("b", STORED))[0] == RefetchResult(requests=1, written=1)


def test_a_store_that_fails_for_an_hour_does_not_delay_the_others(settings: Settings) -> None:
    """It would take all its time-outs for each query of each round."""
    request(settings, "m1", STORED)
    answer_at(settings, (3_600, "error", "busy"), (60, "error", "unreachable"))
    failing, other = MemoryNode("a", broken=True), MemoryNode("b", STORED)
    assert run(settings, failing, other)[0] == RefetchResult(requests=1, written=1)
    assert failing.asked == 0
    assert presence(settings)["b", "m1"] == "present"


def test_after_the_pause_stores_are_asked_for_all_that_is_open(settings: Settings) -> None:
    request(settings, "m1", STORED)
    answer_at(settings, (3_600, "error", "busy"), (301, "error", "unreachable"))
    outcome, written = run(settings, MemoryNode("a", STORED))
    assert (outcome, [entry.message for entry in written]) == (RefetchResult(requests=1, written=1), [STORED])
    request(settings, "m2", LOST)
    assert run(settings, MemoryNode("a"))[0] == RefetchResult(requests=1), "one has answered"


@pytest.mark.parametrize(
    "answers",
    [
        [(90, "error", "busy"), (10, "absent", None), (5, "error", "busy")],
        [(90, "error", "busy"), (10, "error", "another message"), (5, "error", "busy")],
        [(90, "error", "busy"), (20, "error", "busy"), (-7_200, "error", "busy")],
        [(50, "error", "busy"), (0, "error", "busy")],
    ],
    ids=["an answer in between", "an envelope that is another message", "a clock that was set back", "one round"],
)
def test_nobody_waits_after_one_failure(settings: Settings, answers: list[tuple[float, str, str | None]]) -> None:
    request(settings, "m1", STORED)
    answer_at(settings, *answers)
    assert run(settings, MemoryNode("a", STORED))[0] == RefetchResult(requests=1, written=1)


def test_the_pause_doubles_while_nobody_answers() -> None:
    begin, failures, asked_at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC), list[dt.datetime](), list[int]()
    for second in range(0, 3_600, 10):
        now = begin + dt.timedelta(seconds=second)
        rows = {"outcome": ["error"] * len(failures), "detail": ["busy"] * len(failures)}
        times = pa.array(failures, pa.timestamp("us", "UTC"))
        schema = pa.schema([("outcome", pa.string()), ("detail", pa.string()), ("asked_at", times.type)])
        answers = pa.table({**rows, "asked_at": times}, schema=schema)
        if find_pause(answers, now) is None:
            asked_at.append(second)
            failures.append(now)
    assert asked_at[:10] == [0, 10, 20, 30, 40, 50, 60, 120, 240, 480]
    assert {later - one for one, later in pairwise(asked_at[9:])} == {300}


def test_large_messages_are_not_kept_until_all_nodes_have_answered(settings: Settings) -> None:
    """Thousands of hints in a small message may point to large envelopes of a store."""
    request(settings, "m1", STORED)
    client = StoreClient([MemoryNode("a", STORED), MemoryNode("b", STORED)], RetryPolicy(attempts=1))
    pages: list[StorePage] = []
    for each in client.look_up([message_hash(PUBSUB, STORED)], on_page=pages.append):
        assert each.has(message_hash(PUBSUB, STORED))
        assert [entry.message for entry in each.entries] == [None]
    assert [entry.message for page in pages for entry in page.entries] == [STORED, STORED]


def test_an_envelope_is_decoded_once_for_all_messages_whose_hint_it_is(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []

    def count(payload: bytes, families: tuple[WireFamily, ...]) -> Malformed | tuple[WireFamily, SdsMessage]:
        decoded.append(payload)
        return decode_in_families(payload, families)

    monkeypatch.setattr("reliable_channel.evidence.look_ups.decode_in_families", count)
    keyless = ChannelsSettings(content_topics=(ChannelTopic(content_topic=TOPIC),))
    for number in range(5):
        request(settings, f"m{number}", STORED)
    outcome, written = run(settings.model_copy(update={"channels": keyless}), MemoryNode("a", STORED))
    assert (outcome, [entry.message for entry in written]) == (RefetchResult(requests=5, written=1), [STORED])
    assert decoded == [STORED.payload]
    assert [presence(settings)["a", f"m{number}"] for number in range(3)] == ["error", "present", "error"]


def test_without_store_nodes_nothing_happens(settings: Settings) -> None:
    request(settings, "m1", STORED)
    assert run(settings)[0] == RefetchResult()


@pytest.fixture
def another_store(tmp_path: Path) -> Iterator[RestStoreNode]:
    """Somebody else's store: this project's server over an ``envelopes`` table of its own, asked over HTTP."""
    place = str(tmp_path / "elsewhere" / "envelopes")
    row = {
        "kafka_topic": "t",
        "kafka_partition": 0,
        "kafka_offset": 1,
        "pubsub_topic": PUBSUB,
        "content_topic": TOPIC,
        "message_hash": message_hash(PUBSUB, STORED),
        "value": encode_waku_message(STORED),
        "sender_timestamp_ns": STORED.timestamp,
        "ephemeral": False,
        "kind": "sds",
    }
    write_deltalake(place, as_arrow([row], tables.ENVELOPES))
    source = DeltaSource(place, tmp_path / "index.sqlite")
    source.refresh()
    with running(create_app(source)) as address:
        node = RestStoreNode(BoundedHttp(address))
        yield node
        node.close()
    source.close()


def test_a_store_of_our_own_answers_over_http_from_its_envelopes(
    settings: Settings, another_store: RestStoreNode
) -> None:
    request(settings, "m1", STORED)
    request(settings, "m2", LOST)
    written: list[StoreEntry] = []
    client = StoreClient([another_store], RetryPolicy(attempts=1))
    outcome = refetch(settings, client, written.extend)
    assert outcome == RefetchResult(requests=2, gaps=0, written=1)
    (entry,) = written
    assert entry.message is not None and entry.verified
    assert (message_hash(PUBSUB, entry.message), entry.pubsub_topic) == (message_hash(PUBSUB, STORED), PUBSUB)
    assert set(presence(settings).values()) == {"present", "absent"}


def seen(settings: Settings, message: WakuMessage, minutes: float, **more: Any) -> bytes:
    """An envelope in ``envelopes``, as ingest wrote it so many minutes ago; its hash."""
    row = {
        "kafka_topic": "t",
        "kafka_partition": 0,
        "kafka_offset": 1,
        "event_time": time.time_ns() // 1000 - int(minutes * 60e6),
        "source": "relay",
        "pubsub_topic": PUBSUB,
        "content_topic": TOPIC,
        "message_hash": message_hash(PUBSUB, message),
        "ephemeral": False,
        "kind": "sds",
    }
    append_rows(settings.paths, tables.ENVELOPES, as_arrow([row | more], tables.ENVELOPES))
    return message_hash(PUBSUB, message)


def audits(settings: Settings) -> dict[tuple[str, bytes], str]:
    rows = rows_of(open_table(settings.paths, tables.STORE_PRESENCE))
    return {(row["node"], row["message_hash"]): row["outcome"] for row in rows if row["purpose"] == "audit"}


def audited_share(settings: Settings, share: float) -> Settings:
    return settings.model_copy(
        update={"store": settings.store.model_copy(update={"audit": StoreAuditSettings(share=share)})}
    )


def test_a_store_that_forgot_what_was_seen_here_is_found_without_anybody_missing_it(settings: Settings) -> None:
    settings = audited_share(settings, 1)
    stored, forgotten = seen(settings, STORED, minutes=10), seen(settings, LOST, minutes=10)
    outcome, written = run(settings, MemoryNode("a", STORED), MemoryNode("b", broken=True))
    assert (outcome, written) == (RefetchResult(audited=2), [])
    assert audits(settings) == {
        ("a", stored): "present",
        ("a", forgotten): "absent",
        ("b", stored): "error",
        ("b", forgotten): "error",
    }
    assert run(settings, MemoryNode("a", STORED))[0].audited == 0, "each is asked for once"


def test_an_envelope_without_timestamp_is_present_at_a_node_that_hashes_eight_zero_bytes(settings: Settings) -> None:
    without = replace(STORED, timestamp=None)
    zero = replace(STORED, timestamp=0)
    assert message_hash(PUBSUB, without) != message_hash(PUBSUB, zero)
    settings = audited_share(settings, 1)
    hash_ = seen(settings, without, minutes=10, value=encode_waku_message(without))
    run(settings, MemoryNode("a", zero), MemoryNode("b", without), MemoryNode("c"))
    assert audits(settings) == {("a", hash_): "present", ("b", hash_): "present", ("c", hash_): "absent"}
    assert run(settings, MemoryNode("a", zero))[0].audited == 0, "each is asked for once"


@pytest.mark.parametrize(
    ("minutes", "more"),
    [
        (1, {}),
        (61, {}),
        (10, {"ephemeral": True}),
        (10, {"kind": "quarantined"}),
        (10, {"source": "store"}),
    ],
    ids=["too young", "too old", "ephemeral", "no SDS message", "from a store"],
)
def test_a_node_is_not_blamed_for_what_it_need_not_hold(
    settings: Settings, minutes: float, more: dict[str, Any]
) -> None:
    settings = audited_share(settings, 1)
    seen(settings, STORED, minutes, **more)
    node = MemoryNode("a")
    assert (run(settings, node)[0].audited, node.asked) == (0, 0)


@given(st.binary(min_size=32, max_size=32), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_holds_every_smaller_one(message_hash: bytes, one: float, other: float) -> None:
    smaller, larger = (compute_threshold(share) for share in sorted([one, other]))
    if smaller is None or message_hash < smaller:
        assert larger is None or message_hash < larger


def test_half_of_the_hashes_are_half() -> None:
    assert compute_threshold(0.5) == bytes([128, *[0] * 7])
    assert compute_threshold(1) is None
    assert compute_threshold(0) == bytes(8)


def test_only_the_share_is_asked_for(settings: Settings) -> None:
    messages = [WakuMessage(bytes([n]), TOPIC, timestamp=START_S * 10**9) for n in range(24)]
    hashes = [seen(settings, message, minutes=10) for message in messages]
    run(audited_share(settings, 0.5), MemoryNode("a"))
    assert {hash_ for _, hash_ in audits(settings)} == {hash_ for hash_ in hashes if hash_[0] < 128}


def sent(settings: Settings, sds_id: str, message: WakuMessage, at_s: int = START_S) -> None:
    """The sender's own record that it dispatched the message."""
    row = {
        "pubsub_topic": PUBSUB,
        "content_topic": TOPIC,
        "channel_id": "talk",
        "sender_id": "alice",
        "sds_id": sds_id,
        "event": "sent",
        "envelope_hash": message_hash(PUBSUB, message),
        "event_time": at_s * 10**6,
    }
    create_tables(settings.paths, (tables.SENDER_EVENTS, tables.CLOCK))
    append_rows(settings.paths, tables.SENDER_EVENTS, as_arrow([row], tables.SENDER_EVENTS))


def reached(settings: Settings, at_s: int) -> None:
    """The recorded clock."""
    row = {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "query_id": "q", "batch_id": 0}
    row |= {"event_time": at_s * 10**6, "next_offset": 1}
    append_rows(settings.paths, tables.CLOCK, as_arrow([row], tables.CLOCK))


def test_what_its_sender_dispatched_and_nobody_saw_or_names_is_asked_for(settings: Settings) -> None:
    sent(settings, "m1", STORED)
    sent(settings, "m2", LOST)
    reached(settings, START_S + 3_000)
    broken = MemoryNode("b", broken=True)
    outcome, written = run(settings, MemoryNode("a", STORED), broken)
    assert outcome.requests == 2
    assert [entry.message for entry in written] == [STORED]
    assert presence(settings)["a", "m2"] == "absent"
    assert run(settings, MemoryNode("a", STORED))[0].requests == 0, "a node has answered for both"


def test_what_was_dispatched_a_moment_ago_may_still_come(settings: Settings) -> None:
    sent(settings, "m1", STORED)
    reached(settings, START_S + 1)
    assert run(settings, MemoryNode("a", STORED))[0].requests == 0


def sds(message_id: str, at_s: int, sender_id: str = "alice") -> WakuMessage:
    """An envelope with an SDS message of that id."""
    message = SdsMessage(sender_id, message_id, "talk", lamport_timestamp=at_s * 1000, content=b"text")
    return WakuMessage(encode_sds_message(message), TOPIC, timestamp=at_s * 10**9)


@pytest.mark.parametrize("keys", [(), ("key.file",)])
def test_a_request_without_a_hint_is_asked_by_content_topic_and_time(settings: Settings, keys: tuple[str, ...]) -> None:
    topic = ChannelTopic(content_topic=TOPIC, decryption_key_files=keys)
    settings = settings.model_copy(update={"channels": ChannelsSettings(content_topics=(topic,))})
    wanted, other, early = sds("m1", START_S - 60), sds("m9", START_S - 60), sds("m1", START_S - 7_200, "mallory")
    encrypted = WakuMessage(b"\xff" * 40, TOPIC, timestamp=(START_S - 30) * 10**9)
    elsewhere = WakuMessage(wanted.payload, "/other/1/chat/proto", timestamp=wanted.timestamp)
    request(settings, "m1", STORED, hint=b"")
    request(settings, "m2", STORED, hint=b"status-go's own form of a hint")
    node = MemoryNode("a", wanted, other, early, encrypted, elsewhere)
    outcome, written = run(settings, node, MemoryNode("b"), MemoryNode("c", broken=True))
    assert {entry.message for entry in written} == ({wanted, encrypted} if keys else {wanted})
    assert outcome == RefetchResult(requests=2, gaps=0, written=2 if keys else 1)
    assert presence(settings) == {
        ("a", "m1"): "present",
        ("a", "m2"): "absent",
        ("b", "m1"): "absent",
        ("b", "m2"): "absent",
        ("c", "m1"): "error",
        ("c", "m2"): "error",
    }
    asked = node.asked
    assert run(settings, node)[0] == RefetchResult()
    assert node.asked == asked, "one attempt is asked for once"


WHOLE = contents_for(bytes(range(200)), SegmentationConfig(segment_size_bytes=128))
FIRST, SECOND = (carrying("talk", f"part {number}", content) for number, content in enumerate(WHOLE))
RECORD = {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "kafka_offset": 0}
HASH = keccak256(bytes(range(200)))


def overdue(settings: Settings, after_s: int = 300, status: str = "overdue") -> None:
    """The set of ``WHOLE``, of which only the first segment arrived."""
    create_tables(settings.paths, (tables.INCOMPLETE_MESSAGES, tables.REASSEMBLED_MESSAGES))
    row = {"pubsub_topic": PUBSUB, "content_topic": TOPIC, "channel_id": "talk", "sender_id": "alice"}
    row |= {"entire_message_hash": HASH, "event_time": (START_S + after_s) * 10**6, "status": status}
    append_rows(settings.paths, tables.INCOMPLETE_MESSAGES, as_arrow([row], tables.INCOMPLETE_MESSAGES))


def arrived(settings: Settings, sds_id: str, id_verified: bool | None = None) -> None:
    row = {"pubsub_topic": PUBSUB, "content_topic": TOPIC, "channel_id": "talk", "sds_id": sds_id, **RECORD}
    row["id_verified"] = id_verified
    append_rows(settings.paths, tables.SDS_MESSAGES, as_arrow([row], tables.SDS_MESSAGES))


@pytest.mark.parametrize("hint", [None, b""], ids=["by hash", "by range"])
def test_other_content_under_the_id_of_a_missing_message_is_not_that_message(
    settings: Settings, hint: bytes | None
) -> None:
    """It would keep the message from being fetched, whoever sent it."""
    request(settings, "m1", STORED, hint=hint)
    arrived(settings, "m1", id_verified=False)
    assert [entry.message for entry in run(settings, MemoryNode("a", STORED))[1]] == [STORED]
    request(settings, "m1", STORED, attempt=2, hint=hint)
    arrived(settings, "m1", id_verified=True)
    assert run(settings, MemoryNode("a", STORED)) == (RefetchResult(), [])


def of_sets(settings: Settings) -> list[tuple[str, str, int]]:
    rows = rows_of(open_table(settings.paths, tables.STORE_PRESENCE))
    return sorted((row["node"], row["outcome"], row["attempt"]) for row in rows if row["purpose"] == "set")


def test_the_missing_segments_of_an_overdue_set_are_asked_for_although_nobody_names_them(settings: Settings) -> None:
    overdue(settings)
    arrived(settings, "part 0")
    outcome, written = run(settings, MemoryNode("a", FIRST), MemoryNode("b", FIRST, SECOND))
    assert [entry.message for entry in written] == [SECOND], "what arrived completes nothing"
    assert outcome.requests == 1
    assert of_sets(settings) == [("a", "absent", 1), ("b", "present", 1)]
    assert run(settings, MemoryNode("b", FIRST, SECOND)) == (RefetchResult(), []), "a request is made once"
    overdue(settings, after_s=900)
    assert run(settings, MemoryNode("b", FIRST, SECOND))[0].requests == 1, "overdue again: another request"


def test_segments_that_arrived_leave_room_for_those_that_did_not(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's segments of the same payload, in any number, came from the network and are in the store too."""
    monkeypatch.setattr("reliable_channel.evidence.look_ups.MAX_OF_A_TOPIC", 3)
    strangers = [carrying("talk", f"stranger's {number}", WHOLE[0]) for number in range(5)]
    for number in range(5):
        arrived(settings, f"stranger's {number}")
    arrived(settings, "part 0")
    overdue(settings)
    _, written = run(settings, MemoryNode("a", *strangers, FIRST, SECOND))
    assert [entry.message for entry in written] == [SECOND]
    assert of_sets(settings) == [("a", "present", 1)]


def test_what_is_not_written_back_for_lack_of_room_is_not_absent(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliable_channel.evidence.look_ups.MAX_OF_A_TOPIC", 2)
    request(settings, "m1", STORED, hint=b"")
    request(settings, "m2", STORED, hint=b"")
    node = MemoryNode("a", *(carrying("talk", "m1", content) for content in (b"a", b"b", b"c")), carrying("talk", "m2"))
    assert len(run(settings, node)[1]) == 2
    assert presence(settings) == {("a", "m1"): "present", ("a", "m2"): "present"}


def test_of_contents_encrypted_inside_sds_all_are_fetched_that_did_not_arrive(settings: Settings) -> None:
    topic = ChannelTopic(content_topic=TOPIC, decryption_key_files=("key.file",))
    settings = settings.model_copy(update={"channels": ChannelsSettings(content_topics=(topic,))})
    overdue(settings)
    arrived(settings, "part 0")
    first, second = (carrying("talk", f"part {number}", b"\x02" + bytes(60)) for number in range(2))
    assert [entry.message for entry in run(settings, MemoryNode("a", first, second))[1]] == [second]


def test_a_request_for_a_set_that_only_failed_is_repeated(settings: Settings) -> None:
    overdue(settings)
    assert run(settings, MemoryNode("a", broken=True))[1] == []
    assert [entry.message for entry in run(settings, MemoryNode("a", SECOND))[1]] == [SECOND]
    assert of_sets(settings) == [("a", "error", 1), ("a", "present", 1)]


@pytest.mark.parametrize("how", ["rebuilt", "given up"])
def test_a_set_that_has_ended_is_not_asked_for(settings: Settings, how: str) -> None:
    overdue(settings)
    if how == "given up":
        overdue(settings, after_s=3_600, status="given_up")
    else:
        row = {"pubsub_topic": PUBSUB, "content_topic": TOPIC, "channel_id": "talk", **RECORD}
        row["entire_message_hash"] = HASH
        row["event_time"] = (START_S + 420) * 10**6
        append_rows(settings.paths, tables.REASSEMBLED_MESSAGES, as_arrow([row], tables.REASSEMBLED_MESSAGES))
    node = MemoryNode("a", SECOND)
    assert run(settings, node)[0].requests == 0
    assert node.asked == 0


class Waiting(MemoryNode):
    """A node that answers only after something was written to Kafka."""

    def __init__(self, name: str, *messages: WakuMessage) -> None:
        super().__init__(name, *messages)
        self.written = threading.Event()

    def query(self, query: StoreQuery) -> StorePage:
        self.written.wait()
        return super().query(query)


@pytest.mark.parametrize("how", ["by hash", "by range", "set"])
def test_an_honest_answer_is_written_before_a_slow_node_has_ended(settings: Settings, how: str) -> None:
    if how == "set":
        overdue(settings)
    else:
        request(settings, "m1", STORED, hint=None if how == "by hash" else b"")
    slow, honest = Waiting("slow"), MemoryNode("honest", SECOND if how == "set" else STORED)
    written: list[StoreEntry] = []

    def write_back(entries: Sequence[StoreEntry]) -> None:
        written.extend(entries)
        if written:
            slow.written.set()

    refetch(settings, StoreClient([slow, honest], RetryPolicy(attempts=1), deadline_s=60), write_back)
    outcomes = {row["node"]: row["outcome"] for row in rows_of(open_table(settings.paths, tables.STORE_PRESENCE))}
    assert outcomes == {"honest": "present", "slow": "absent"}, "the slow node could answer: the other was written"
    assert len(written) == 1


def test_what_several_nodes_have_is_written_once(settings: Settings) -> None:
    request(settings, "m1", STORED, hint=b"")
    request(settings, "m2", STORED)
    _, written = run(settings, MemoryNode("a", STORED), MemoryNode("b", STORED), MemoryNode("c", STORED))
    assert [entry.message for entry in written] == [STORED]


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize("timestamp", [None, 0, START_S * 10**9])
def test_an_entry_is_known_under_every_hash_that_nodes_use_for_it(verified: bool, timestamp: int | None) -> None:
    message = WakuMessage(b"text", TOPIC, timestamp=timestamp)
    stated = bytes(32)
    hashes = list_hashes(StoreEntry(stated, message, PUBSUB, verified=verified))
    expected = {stated, *hash_candidates(PUBSUB, message)}
    if not verified:
        expected |= {*hash_candidates(PUBSUB, replace(message, meta=RELIABLE_CHANNEL_META))}
    assert hashes[0] == stated
    assert sorted(hashes) == sorted(expected)
    assert list_hashes(StoreEntry(stated)) == [stated]


def test_a_round_makes_objects_of_the_open_requests_only(settings: Settings) -> None:
    """It made some of every request and answer of thirty days: 3.4 s of CPU and 300 MB for 100 000 of each."""
    count = 5_000
    common = {"pubsub_topic": None, "content_topic": TOPIC, "channel_id": "talk"}
    names = [f"{number:064x}" for number in range(count)]
    asked = [common | {"sds_id": name, "attempt": attempt} for name in names for attempt in (1, 2)]
    requested = [one | {"event_time": START_S * 10**6} for one in asked]
    answered = [
        one | {"node": "a", "purpose": "range", "outcome": "absent", "asked_at": START_S * 10**6} for one in asked
    ]
    append_rows(settings.paths, tables.REFETCH_REQUESTS, as_arrow(requested, tables.REFETCH_REQUESTS))
    answers = as_arrow(answered[:-1], tables.STORE_PRESENCE)  # none for the second request of the last one
    find_open_requests(settings, answers)
    tracemalloc.start()
    try:
        still_open = find_open_requests(settings, answers)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(one.pubsub_topic, one.sds_id, one.attempt) for one in still_open] == [(None, names[-1], 2)]
    assert peak < 500_000, "bytes of Python objects; it was 100 for every row"
