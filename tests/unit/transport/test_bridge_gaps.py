"""What a bridge missed: which times are gaps, and which stores fill them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from reliable_channel.config import PathSettings, load
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, message_hash
from reliable_channel.evidence.intake import EvidenceRecord, convert_record, read_position, write
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ENVELOPES
from reliable_channel.pipeline.verdict.gaps import read_open_gaps
from reliable_channel.transport.base import Source
from reliable_channel.transport.bridge_context import UNKNOWN_MS
from reliable_channel.transport.bridge_gaps import GapFiller
from reliable_channel.transport.bridge_inbound import Inbound
from reliable_channel.transport.bridge_outbound import Outbound
from reliable_channel.transport.bridge_state import BridgeGap
from reliable_channel.transport.evidence import sightings_record
from reliable_channel.transport.health import Mode
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.store.client import RetryPolicy, StoreClient, StoreNode
from reliable_channel.transport.store.model import StorePage, StoreQuery
from reliable_channel.transport.store.rest_node import RestStoreNode, StoreFault, StoreNodeError
from reliable_channel.transport.store.source import MemorySource, read_page
from reliable_channel.transport.waku_api import Read
from reliable_channel.transport.waku_receiver import WakuReceiver
from tests.support.bridge_parts import TOPIC, Parts, outgoing_request, results
from tests.support.fake_waku_node import PUBSUB_TOPIC


@pytest.mark.parametrize("asleep_in", ["the wait", "a read"])
def test_a_sleep_of_the_machine_is_a_gap_that_its_own_node_cannot_fill(
    parts: Callable[..., Parts], monkeypatch: pytest.MonkeyPatch, asleep_in: str
) -> None:
    """The node slept, too: it has kept the subscription, and its cache is not full. What was sent meanwhile was
    missing without a cause, and no store was asked for it."""
    bridge = parts("nwaku")
    bridge.inbound.step()
    asleep_at = bridge.context.now_ms()
    read = bridge.api.relay_read

    def read_asleep(topic: str) -> Read:
        bridge.clock.advance(8 * 3_600_000)
        return read(topic)

    if asleep_in == "the wait":
        bridge.clock.advance(8 * 3_600_000)
        bridge.inbound.step()
    else:
        with monkeypatch.context() as patch:
            patch.setattr(bridge.api, "relay_read", read_asleep)
            bridge.inbound.step()
    bridge.inbound.step()
    (gap,) = bridge.state.gaps
    assert gap == BridgeGap(asleep_at, bridge.context.now_ms(), "bridge_suspended")
    ask_own_and(bridge, at(asleep_at + 3_600_000, b"missed"))
    assert bridge.written.payloads() == [b"missed"]
    *_, last = bridge.written.gaps()
    assert (last["status"], last["stores"]) == (
        "filled",
        {bridge.fake.url: "was_unreachable", "elsewhere": "complete"},
    )
    made = [convert_record(EvidenceRecord(0, 0, one.value), "envelopes") for one in bridge.written.records]
    causes = {row.get("cause") for _, rows in filter(None, made) for row in rows} - {None}
    assert causes == {"bridge_suspended"}


def test_the_gap_of_a_bridge_whose_clock_was_set_back_while_it_was_away_is_filled(parts: Callable[..., Parts]) -> None:
    """It ended before it began, and stores were asked for nothing."""
    bridge = parts("nwaku")
    bridge.clock.advance(3_600_000)
    bridge.inbound.step()
    bridge.clock.advance(-1_800_000)
    Inbound(WakuReceiver(bridge.api, Mode.RELAY, bridge.clock), bridge.context).step()
    assert [gap.cause for gap in bridge.state.gaps] == ["bridge_restart"]
    ask_own_and(bridge, at(bridge.context.now_ms() - 600_000, b"missed"))
    assert bridge.written.payloads() == [b"missed"]


@pytest.mark.parametrize("restarts", [True, False])
def test_a_gap_does_not_begin_with_a_clock_that_was_not_set_yet(parts: Callable[..., Parts], restarts: bool) -> None:
    """It lasted since 1970, and every page of every store was asked for."""
    bridge = parts("nwaku")
    set_ms = bridge.context.now_ms()
    bridge.clock.advance(60_000 - set_ms)
    bridge.inbound.step()
    bridge.clock.advance(set_ms)
    inbound = (
        Inbound(WakuReceiver(bridge.api, Mode.RELAY, bridge.clock), bridge.context) if restarts else bridge.inbound
    )
    inbound.step()
    (gap,) = bridge.state.gaps
    assert gap.to_ms - gap.from_ms == (UNKNOWN_MS if restarts else 0)


def ask_own_and(bridge: Parts, message: WakuMessage) -> None:
    """Ask the bridge's own node, and a store elsewhere that has a message, for the open gap."""
    own = RestStoreNode(BoundedHttp(bridge.fake.url, 0.3))
    stores = StoreClient([own, OtherStore("elsewhere", message)], RetryPolicy(1))
    bridge.filler = GapFiller(stores, bridge.context, settle_ms=0)
    bridge.gap_over()


@pytest.mark.parametrize("fault", ["", "protocols not supported: [/vac/waku/store-query/3.0.0]", "dial to self"])
def test_a_gap_on_go_waku_is_filled_by_store_v1(parts: Callable[..., Parts], fault: str) -> None:
    bridge = parts()
    bridge.fake.faults.store_v3 = fault  # empty: v3 demands content topics that the bridge does not know
    bridge.inbound.step()
    bridge.publish(b"seen")
    bridge.inbound.step()
    bridge.fake.restart()
    bridge.publish(b"missed")
    bridge.inbound.step()
    assert bridge.filler.step() == 1
    assert bridge.written.payloads() == [b"seen", b"missed"]  # Store v1 has no meta, and still is seen not doubled
    assert bridge.written.gaps()[-1]["stores"] == {bridge.fake.url: "complete_unverified"}
    assert [(gap["status"], gap["attempts"]) for gap in bridge.written.gaps()] == [("open", 0), ("filled", 1)]


def test_a_gap_is_filled_although_the_clock_was_set_back(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.clock.advance(86_400_000)
    bridge.fake.restart()
    bridge.inbound.step()
    bridge.clock.advance(-86_400_000)
    assert bridge.filler.step() == 1


def test_what_a_store_gave_first_is_not_doubled_when_the_relay_brings_it(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.restart()
    bridge.publish(b"missed")
    bridge.inbound.step()
    bridge.publish(b"late")  # in the margin of the gap, and in the cache of the relay as well
    assert bridge.filler.step() == 1
    bridge.inbound.step()
    assert sorted(bridge.written.payloads()) == [b"late", b"missed"]


def test_the_threads_of_a_bridge_do_not_write_one_envelope_each(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.restart()
    bridge.publish(b"missed")
    bridge.inbound.step()
    bridge.publish(b"late")
    reads = threading.Thread(target=bridge.inbound.step)

    def meanwhile() -> None:  # the filler has found that the envelope is new, and writes it
        reads.start()
        reads.join(0.5)

    bridge.written.before_write = meanwhile
    assert bridge.filler.step() == 1
    reads.join(120)
    assert sorted(bridge.written.payloads()) == [b"late", b"missed"]


@pytest.mark.parametrize("seen", [(b"seen",), ()], ids=["seen", "of a channel"])
def test_a_node_that_demands_content_topics_is_asked_for_those_that_were_seen_or_are_of_channels(
    parts: Callable[..., Parts], seen: tuple[bytes, ...]
) -> None:
    bridge = parts(channels=() if seen else (TOPIC,))
    bridge.fake.faults.paths, bridge.fake.faults.status = "/store/v1", 500  # its peer has Store v3 alone
    bridge.inbound.step()
    bridge.publish(*seen)
    bridge.inbound.step()
    bridge.fake.restart()
    bridge.publish(b"missed")
    bridge.inbound.step()
    assert bridge.filler.step() == 1
    assert bridge.written.payloads() == [*seen, b"missed"]
    assert bridge.written.gaps()[-1]["stores"] == {bridge.fake.url: "known_content_topics"}


def test_a_strangers_content_topic_keeps_no_gap_open(parts: Callable[..., Parts]) -> None:
    """Commas separate the topics of a query. A store that demands them refused every query with that topic in it."""
    bridge = parts()
    bridge.fake.faults.paths, bridge.fake.faults.status = "/store/v1", 500
    bridge.inbound.step()
    strange = WakuMessage(b"strange", "/a" + ",b" * 10, timestamp=bridge.clock.now_ns())
    bridge.fake.network.publish(PUBSUB_TOPIC, strange)
    bridge.publish(b"seen")
    bridge.inbound.step()
    bridge.fake.restart()
    bridge.publish(b"missed")
    bridge.inbound.step()
    assert bridge.filler.step() == 1
    assert bridge.written.payloads() == [b"strange", b"seen", b"missed"]


def test_a_full_cache_again_and_again_has_each_minute_read_once_from_the_store(parts: Callable[..., Parts]) -> None:
    """Each read that found the cache full was a gap of its own, and half a minute before and after it was asked for."""
    bridge = parts("nwaku", relay_cache=50)
    bridge.filler = GapFiller(StoreClient([RestStoreNode(BoundedHttp(bridge.fake.url, 5))]), bridge.context)
    bridge.inbound.step()
    for number in range(30):
        bridge.clock.advance(500)
        bridge.publish(*(b"%d of %d" % (one, number) for one in range(50)))
        bridge.inbound.step()
        bridge.clock.advance(500)
        bridge.publish(b"in between %d" % number)
        bridge.inbound.step()
        bridge.filler.step()
    bridge.clock.advance(10_000)
    assert bridge.filler.step() == 1
    pages = [path for _, path in bridge.fake.requests if path == "/store/v3/messages"]
    assert len(pages) == 30 * 51 // 100 + 1


def test_an_unanswered_gap_is_asked_for_ever_more_rarely_and_its_attempts_are_counted(
    parts: Callable[..., Parts],
) -> None:
    bridge = parts()
    bridge.state.open_gap(BridgeGap(0, 1, "bridge_restart"))
    bridge.fake.down()
    minutes = []
    for minute in range(40):
        before = len(bridge.written.gaps())
        assert bridge.filler.step() == 0
        if len(bridge.written.gaps()) > before:
            minutes.append(minute)
        bridge.clock.advance(60_000)
    assert minutes == [0, 1, 3, 7, 15, 25, 35]
    assert [gap["attempts"] for gap in bridge.written.gaps()] == [1, 2, 3, 4, 5, 6, 7]
    assert {gap["name"] for gap in bridge.written.gaps()} == {"0-bridge_restart"}


class OtherStore:
    """A store node in this process."""

    def __init__(self, name: str, *messages: WakuMessage) -> None:
        self.name, self.is_up = name, True
        self.source = MemorySource()
        for message in messages:
            self.source.add(PUBSUB_TOPIC, message)

    def query(self, query: StoreQuery) -> StorePage:
        if not self.is_up:
            raise StoreNodeError(self.name, StoreFault.UNREACHABLE, "off")
        return read_page(self.source, query, self.name)

    def close(self) -> None:
        return None


def at(ms: int, payload: bytes) -> WakuMessage:
    return WakuMessage(payload, TOPIC, timestamp=ms * 1_000_000, meta=RELIABLE_CHANNEL_META)


def fill(bridge: Parts, cause: str, *stores: StoreNode) -> tuple[str, dict[str, str]]:
    """Fill a gap of ten seconds that ends now; its last status, and what each store answered."""
    now = bridge.context.now_ms()
    bridge.state.open_gap(BridgeGap(now - 10_000, now, cause))
    bridge.filler = GapFiller(StoreClient(stores, RetryPolicy(1)), bridge.context, settle_ms=0)
    bridge.filler.step()
    (*_, last) = bridge.written.gaps()
    return last["status"], last["stores"]


@pytest.mark.parametrize("way", ["received", "dispatched", "dispatched late", "of a store"])
def test_an_envelope_that_does_not_fit_into_its_topic_is_a_gap_of_its_time(
    parts: Callable[..., Parts], way: str
) -> None:
    """It was a line in the log: its message was *missing*, without a cause."""
    bridge = parts()
    bridge.inbound.step()
    bridge.written.max_bytes = 10_000
    sent_ms = bridge.context.now_ms()
    if way == "received":
        bridge.publish(bytes(20_000), b"fits")
        bridge.inbound.step()
    elif way.startswith("dispatched"):
        if way == "dispatched late":  # after a rate limit's epoch, or without a bridge
            bridge.clock.advance(1_800_000)
        dispatcher = Outbound(bridge.api.relay_publish, bridge.context)
        outgoing = [replace(outgoing_request(payload), at_ms=sent_ms) for payload in (bytes(20_000), b"fits")]
        dispatcher.dispatch(outgoing, threading.Event())
        assert [one.status for one in results(bridge)] == ["accepted"] * 2
    else:
        bridge.fake.restart()
        bridge.publish(bytes(20_000), b"fits")
        bridge.inbound.step()
        bridge.clock.advance(3_600_000)
        bridge.gap_over()
    bridge.inbound.step()
    assert bridge.written.payloads() == [b"fits"]
    made = [convert_record(EvidenceRecord(0, 0, one.value), "envelopes") for one in bridge.written.records]
    (gap,) = [row for _, rows in filter(None, made) for row in rows if row.get("cause") == "too_large"]
    assert gap["status"] == "unfilled"
    assert gap["from_time"] <= sent_ms * 1000 <= gap["to_time"] < (sent_ms + 3_600_000) * 1000


def test_the_node_that_was_down_proves_nothing_about_its_own_outage(parts: Callable[..., Parts]) -> None:
    bridge = parts("nwaku")
    own = RestStoreNode(BoundedHttp(bridge.fake.url, 0.3))
    assert fill(bridge, "node_unreachable", own) == ("unfilled", {bridge.fake.url: "was_unreachable"})
    assert bridge.state.gaps == ()
    assert fill(bridge, "bridge_restart", own)[0] == "filled"
    assert fill(bridge, "node_unreachable", own, OtherStore("elsewhere"))[0] == "filled"


def test_a_store_that_lacks_what_others_have_of_a_gap_does_not_close_it(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    now = bridge.context.now_ms()
    one, two, before = at(now - 5_000, b"one"), at(now - 4_000, b"two"), at(now - 20_000, b"before")
    status, stores = fill(bridge, "node_unreachable", OtherStore("a", one), OtherStore("b", one, two, before))
    assert (status, stores) == ("filled", {"a": "incomplete", "b": "complete"})
    status, stores = fill(bridge, "node_unreachable", OtherStore("a", one), OtherStore("b", two))
    assert (status, stores) == ("unfilled", {"a": "incomplete", "b": "incomplete"})
    assert {b"one", b"two"} <= {*bridge.written.payloads()}


def test_a_store_that_did_not_answer_during_a_gap_does_not_close_it(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    down, up = OtherStore("down"), OtherStore("up")
    bridge.filler = GapFiller(StoreClient([down, up], RetryPolicy(1)), bridge.context, settle_ms=0)
    bridge.clock.advance(3_600_000)
    bridge.filler.probe()
    bridge.clock.advance(-3_600_000)  # probes go on after the clock was set back
    down.is_up = False
    bridge.filler.probe()
    down.is_up = True
    now = bridge.context.now_ms()
    bridge.state.open_gap(BridgeGap(now - 1_000, now, "node_unreachable"))
    bridge.filler.step()
    assert bridge.written.gaps()[-1]["stores"] == {"down": "was_unreachable", "up": "complete"}


def test_the_one_store_that_was_down_with_its_node_does_not_fill_what_another_bridge_saw(
    parts: Callable[..., Parts], tmp_path: Path
) -> None:
    bridge, paths = parts("nwaku"), load("local").with_run_dir(tmp_path / "run").paths
    now, own = bridge.context.now_ms(), RestStoreNode(BoundedHttp(bridge.fake.url, 0.3))
    missed = at(now - 5_000, b"missed")
    bridge.publish(b"kept", at_ns=(now - 1_000) * 1_000_000)  # the node came back before the end of the gap
    assert fill(bridge, "bridge_restart", own) == ("filled", {bridge.fake.url: "complete"})
    assert bridge.written.payloads() == [b"kept"]
    evidence = [record.value for record in bridge.written.records if record.topic == "evidence"]
    assert count_open_gaps(paths, evidence, missed) == 0
    seen = [message_hash(PUBSUB_TOPIC, missed)]
    evidence.append(sightings_record("elsewhere", "n", Source.RELAY, PUBSUB_TOPIC, seen, now - 4_500)[1])
    assert count_open_gaps(paths, evidence, missed) == 1


def count_open_gaps(paths: PathSettings, evidence: Sequence[bytes | None], message: WakuMessage) -> int:
    """Write records of the evidence topic and an envelope to new tables; the number of gaps that count."""
    read_position(paths, "evidence", 0)
    records = [EvidenceRecord(0, number, value) for number, value in enumerate(evidence)]
    write(paths, "evidence", records, "envelopes")
    us = (message.timestamp or 0) // 1_000
    row = {
        "kafka_topic": "envelopes",
        "kafka_partition": 0,
        "kafka_offset": 0,
        **dict.fromkeys(("record_time", "event_time", "ingest_time"), us),
        "source": "relay",
        "pubsub_topic": PUBSUB_TOPIC,
        "content_topic": message.content_topic,
        "message_hash": message_hash(PUBSUB_TOPIC, message),
        "sender_timestamp_ns": message.timestamp,
        "ephemeral": False,
        "kind": "sds",
    }
    create_tables(paths, (ENVELOPES,))
    append_rows(paths, ENVELOPES, as_arrow([row], ENVELOPES))
    return len(read_open_gaps(paths))
