"""Requests for missing messages: which are sent to stores, and what of the answers goes back to Kafka."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import write_deltalake
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from reliable_channel.config import Settings
from reliable_channel.config.channels import ChannelsSettings, ChannelTopic
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import SdsMessage, WireFamily, decode_in_families, encode_sds_message
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, encode_waku_message, message_hash
from reliable_channel.evidence import look_ups
from reliable_channel.evidence.delta_source import DeltaSource
from reliable_channel.evidence.refetch import RefetchResult, refetch
from reliable_channel.evidence.requests import find_open_requests
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.transport.base import hash_candidates, list_hashes
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.store.client import RetryPolicy, StoreClient
from reliable_channel.transport.store.model import StoreEntry, StorePage
from reliable_channel.transport.store.rest_node import RestStoreNode
from reliable_channel.transport.store.server import create_app
from tests.support.examples import examples
from tests.support.http_server import running
from tests.support.refetching import (
    LOST,
    PUBSUB,
    START_S,
    STORED,
    TOPIC,
    MemoryNode,
    add_arrival,
    carrying,
    presence,
    request,
    run,
    settings_in,
)


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
    assert node.queries == 1
    request(settings, "m2", LOST, attempt=2)
    outcome, _ = run(settings, node)
    assert (node.queries, outcome.requests) == (2, 1)


def test_what_is_in_kafka_and_was_not_recorded_is_asked_for_and_written_again(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill in between. It is in Kafka twice then; recorded first, it might never be there."""
    request(settings, "m1", STORED)
    node = MemoryNode("a", STORED)

    def kill(*_: object) -> None:
        raise SystemExit(137)

    with monkeypatch.context() as killed, pytest.raises(SystemExit):
        killed.setattr(look_ups, "append_rows", kill)
        run(settings, node)
    assert presence(settings) == {}
    _, written = run(settings, node)
    assert [entry.message for entry in written] == [STORED]
    assert presence(settings) == {("a", "m1"): "present"}
    run(settings, node)
    assert node.queries == 2


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
    queries = node.queries
    assert run(settings, node)[0] == RefetchResult()
    assert node.queries == queries, "one attempt is asked for once"


@pytest.mark.parametrize("hint", [None, b""], ids=["by hash", "by range"])
def test_other_content_under_the_id_of_a_missing_message_is_not_that_message(
    settings: Settings, hint: bytes | None
) -> None:
    """It would keep the message from being fetched, whoever sent it."""
    request(settings, "m1", STORED, hint=hint)
    add_arrival(settings, "m1", id_verified=False)
    assert [entry.message for entry in run(settings, MemoryNode("a", STORED))[1]] == [STORED]
    request(settings, "m1", STORED, attempt=2, hint=hint)
    add_arrival(settings, "m1", id_verified=True)
    assert run(settings, MemoryNode("a", STORED)) == (RefetchResult(), [])


def test_what_is_not_written_back_for_lack_of_room_is_not_absent(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliable_channel.evidence.look_ups.MAX_OF_A_TOPIC", 2)
    request(settings, "m1", STORED, hint=b"")
    request(settings, "m2", STORED, hint=b"")
    node = MemoryNode("a", *(carrying("talk", "m1", content) for content in (b"a", b"b", b"c")), carrying("talk", "m2"))
    assert len(run(settings, node)[1]) == 2
    assert presence(settings) == {("a", "m1"): "present", ("a", "m2"): "present"}


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
    named = [common | {"sds_id": name, "attempt": attempt} for name in names for attempt in (1, 2)]
    requested = [one | {"event_time": START_S * 10**6} for one in named]
    answered = [
        one | {"node": "a", "purpose": "range", "outcome": "absent", "asked_at": START_S * 10**6} for one in named
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
