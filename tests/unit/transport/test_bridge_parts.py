"""The halves of the bridge one by one, against fake nodes and with a list in place of Kafka: no threads, no waiting."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from support.fake_waku_faults import Dialect
from support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNetwork, FakeWakuNode

from reliable_channel.store.client import RetryPolicy, StoreClient
from reliable_channel.store.rest_node import RestStoreNode
from reliable_channel.transport.base import Source
from reliable_channel.transport.bridge_context import BridgeContext, BridgeTopics, SharedRecent
from reliable_channel.transport.bridge_gaps import GapFiller
from reliable_channel.transport.bridge_inbound import REJOIN_MAX_S, Inbound
from reliable_channel.transport.bridge_outbound import Outbound
from reliable_channel.transport.bridge_state import BridgeState, Gap
from reliable_channel.transport.bridge_writer import OutRecord, SafeWriter
from reliable_channel.transport.clock import ManualClock
from reliable_channel.transport.health import Mode
from reliable_channel.transport.http import BoundedHttp
from reliable_channel.transport.kafka_consumer import RawRecord
from reliable_channel.transport.kafka_records import headers_of, read_record
from reliable_channel.transport.waku_api import WakuApi
from reliable_channel.transport.waku_receiver import WakuReceiver
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, encode_waku_message, message_hash

TOPIC = "/app/1/golden/proto"
OTHER_SHARD = "/waku/2/rs/16/33"
START_NS = ManualClock().now_ns()


class Written(SafeWriter):
    """Keeps what a bridge writes to Kafka."""

    def __init__(self) -> None:
        self.records: list[OutRecord] = []

    def write(self, records: Sequence[OutRecord]) -> int:
        self.records += records
        return 0

    def payloads(self) -> list[bytes]:
        found = [read_record(r.value, r.headers) for r in self.records if r.topic == "envelopes"]
        return [one.message.payload for one in found if not isinstance(one, Malformed)]

    def evidence(self, kind: str) -> list[dict[str, Any]]:
        found = [json.loads(r.value) for r in self.records if r.topic == "evidence"]
        return [record for record in found if record["kind"] == kind]

    def gaps(self) -> list[dict[str, Any]]:
        return self.evidence("gap")

    def sightings(self) -> list[tuple[str, str, str, str]]:
        """(vantage, node, source, message hash) of every sighting, in order."""
        return [
            (record["vantage"], record["node"], record["source"], found)
            for record in self.evidence("sightings")
            for found in record["hashes"]
        ]


class Parts:
    """One bridge's parts around a fake node."""

    def __init__(self, fake: FakeWakuNode, place: Path, topics: tuple[tuple[str, str | None], ...] = ()) -> None:
        self.fake = fake
        self.clock = ManualClock()
        self.written = Written()
        self.counts: Counter[str] = Counter()
        self.state = BridgeState(place / "state.json")
        self.state.open()
        self.context = BridgeContext(
            BridgeTopics("envelopes", "outgoing", "evidence", topics or ((PUBSUB_TOPIC, None),)),
            self.state,
            SharedRecent(self.state.recent),
            self.written,
            self.clock,
            lambda name, number: self.counts.update({name: number}),
            fake.url,
            place.name,
        )
        self.api = WakuApi(BoundedHttp(fake.url, 0.3))
        self.inbound = Inbound(WakuReceiver(self.api, Mode.RELAY, self.clock), self.context)
        store = RestStoreNode(BoundedHttp(fake.url, 0.3))
        self.filler = GapFiller(StoreClient([store], RetryPolicy(1)), self.context, settle_ms=0, retry_ms=60_000)

    def gap_over(self) -> None:
        """Ask the stores for what is open now."""
        assert self.filler.step() == 1

    def publish(self, *payloads: bytes, topic: str = PUBSUB_TOPIC, at_ns: int | None = None) -> list[str]:
        """Let others publish; the message hashes in hex."""
        at = self.clock.now_ns() if at_ns is None else at_ns
        messages = [WakuMessage(payload, TOPIC, timestamp=at, meta=RELIABLE_CHANNEL_META) for payload in payloads]
        for message in messages:
            self.fake.network.publish(topic, message)
        return [message_hash(topic, message).hex() for message in messages]

    def stop(self) -> None:
        """An orderly end."""
        stopping = threading.Event()
        stopping.set()
        self.inbound.run(stopping)


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Callable[..., Parts]]:
    """Makes the parts around a new fake node."""
    made: list[Parts] = []

    def make(dialect: Dialect = "go-waku", topics: tuple[tuple[str, str | None], ...] = (), **more: Any) -> Parts:
        fake = FakeWakuNode(dialect, FakeWakuNetwork(), **more)
        fake.up()
        made.append(Parts(fake, tmp_path, topics))
        return made[-1]

    yield make
    for one in made:
        one.fake.down()
        one.state.close()


def test_an_orderly_stop_leaves_the_nodes_own_shard_alone(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.stop()
    assert ("DELETE", "/relay/v1/subscriptions") not in bridge.fake.requests
    assert bridge.fake.joined == {PUBSUB_TOPIC}


def test_an_orderly_stop_gives_up_a_shard_that_only_the_bridge_had_joined(parts: Callable[..., Parts]) -> None:
    bridge = parts(joined=())
    bridge.inbound.step()
    bridge.stop()
    assert bridge.fake._relay == {}


def test_an_orderly_stop_reads_what_came_since_the_last_read(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.publish(b"1", b"2", b"3")
    bridge.stop()
    assert bridge.written.payloads() == [b"1", b"2", b"3"]


def test_envelopes_of_one_timestamp_keep_the_order_of_the_node(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    payloads = [b"%d" % number for number in range(20)]
    bridge.publish(*payloads)
    bridge.publish(b"earlier", at_ns=START_NS - 1)
    bridge.inbound.step()
    assert bridge.written.payloads() == [b"earlier", *payloads]


def test_a_relay_that_hangs_while_the_node_answers_is_named(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.faults.slow_s, bridge.fake.faults.paths = 1.0, "/relay/"
    bridge.inbound.step()
    assert not bridge.inbound.reachable
    assert "relay interface" in bridge.inbound.fault
    assert "hangs" in bridge.inbound.fault


def test_one_outage_is_one_gap_that_names_the_outage(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.down()
    for _ in range(3):
        bridge.inbound.step()
    bridge.fake.restart()  # it has forgotten the subscription, which is no gap of its own
    bridge.inbound.step()
    assert [gap.cause for gap in bridge.state.gaps] == ["node_unreachable"]
    assert [gap["cause"] for gap in bridge.written.gaps()] == ["node_unreachable"]


def test_a_node_that_is_away_for_long_is_asked_every_two_seconds(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.fake.down()
    assert max(bridge.inbound.step() for _ in range(10)) == REJOIN_MAX_S
    assert not bridge.inbound.ever_reachable
    assert bridge.fake.url in bridge.inbound.fault


@pytest.mark.parametrize(("here", "there"), [(30, 20), (25, 30)])
def test_nwaku_counts_its_cache_over_all_topics(parts: Callable[..., Parts], here: int, there: int) -> None:
    bridge = parts("nwaku", ((PUBSUB_TOPIC, None), (OTHER_SHARD, None)), joined=(PUBSUB_TOPIC, OTHER_SHARD))
    bridge.inbound.step()
    bridge.publish(*(b"a%d" % number for number in range(here)))
    bridge.publish(*(b"b%d" % number for number in range(there)), topic=OTHER_SHARD)
    bridge.inbound.step()
    assert [gap.cause for gap in bridge.state.gaps] == ["cache_full"]


def test_the_capacity_of_the_cache_is_a_setting(parts: Callable[..., Parts]) -> None:
    bridge = parts("nwaku", relay_cache=200)
    bridge.inbound = Inbound(WakuReceiver(bridge.api, Mode.RELAY, bridge.clock, cache=200), bridge.context)
    bridge.inbound.step()
    bridge.publish(*(b"%d" % number for number in range(60)))
    bridge.inbound.step()
    assert bridge.state.gaps == ()


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
    assert [(gap["status"], gap["attempts"]) for gap in bridge.written.gaps()] == [("open", 0), ("filled", 1)]


def test_a_node_that_demands_content_topics_is_asked_for_those_that_were_seen(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.fake.faults.paths, bridge.fake.faults.status = "/store/v1", 500  # its peer has Store v3 alone
    bridge.inbound.step()
    bridge.publish(b"seen")
    bridge.inbound.step()
    bridge.fake.restart()
    bridge.publish(b"missed")
    bridge.inbound.step()
    assert bridge.filler.step() == 1
    assert bridge.written.payloads() == [b"seen", b"missed"]
    assert bridge.written.gaps()[-1]["stores"] == {bridge.fake.url: "known_content_topics"}


def test_an_unanswered_gap_is_asked_for_ever_more_rarely_and_its_attempts_are_counted(
    parts: Callable[..., Parts],
) -> None:
    bridge = parts()
    bridge.state.open_gap(Gap(0, 1, "bridge_restart"))
    bridge.fake.down()
    asked = []
    for minute in range(40):
        before = len(bridge.written.gaps())
        assert bridge.filler.step() == 0
        if len(bridge.written.gaps()) > before:
            asked.append(minute)
        bridge.clock.advance(60_000)
    assert asked == [0, 1, 3, 7, 15, 25, 35]
    assert [gap["attempts"] for gap in bridge.written.gaps()] == [1, 2, 3, 4, 5, 6, 7]
    assert {gap["name"] for gap in bridge.written.gaps()} == {"0-bridge_restart"}


def outgoing(payload: bytes, topic: str = PUBSUB_TOPIC) -> RawRecord:
    value = encode_waku_message(WakuMessage(payload, TOPIC, timestamp=START_NS))
    return RawRecord(0, 0, None, value, tuple(headers_of(topic, Source.SENDER)))


def test_the_first_publish_waits_until_the_node_has_joined(parts: Callable[..., Parts]) -> None:
    bridge = parts("nwaku", joined=())
    outbound = Outbound(bridge.api.relay_publish, bridge.context)
    stopping = threading.Event()
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.extend(outbound.dispatch([outgoing(b"first")], stopping)))
    thread.start()
    bridge.inbound.step()
    thread.join(30)
    assert len(done) == 1
    assert [message.payload for _, message in bridge.fake.published] == [b"first"]
    assert bridge.counts["failed"] == 0


def test_an_envelope_outlasts_a_node_that_has_forgotten_the_topic(parts: Callable[..., Parts]) -> None:
    bridge = parts("nwaku", joined=())
    outbound = Outbound(bridge.api.relay_publish, bridge.context)
    bridge.inbound.step()
    bridge.fake.restart()

    class Rejoining(threading.Event):
        """The wait before the next attempt, in which the reader joins again."""

        def wait(self, timeout: float | None = None) -> bool:
            bridge.inbound.step()
            return False

    assert len(outbound.dispatch([outgoing(b"kept")], Rejoining())) == 1
    assert [message.payload for _, message in bridge.fake.published] == [b"kept"]


def test_a_topic_that_the_bridge_does_not_read_is_refused_at_once(parts: Callable[..., Parts]) -> None:
    bridge = parts("nwaku")
    outbound = Outbound(bridge.api.relay_publish, bridge.context)
    assert len(outbound.dispatch([outgoing(b"x", "/waku/2/rs/16/99")], threading.Event())) == 1
    assert bridge.counts["failed"] == 1


def test_a_stop_does_not_wait_for_a_node_that_never_answered(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    stopping = threading.Event()
    stopping.set()
    publish = cast(Any, None)  # never called
    assert Outbound(publish, bridge.context).dispatch([outgoing(b"x")], stopping) == []


def test_two_bridges_say_where_an_envelope_was_seen_and_where_not(tmp_path: Path) -> None:
    network = FakeWakuNetwork()
    with FakeWakuNode("go-waku", network) as one, FakeWakuNode("go-waku", network) as other:
        north, south = Parts(one, tmp_path / "north"), Parts(other, tmp_path / "south")
        north.inbound.step()
        south.inbound.step()
        (both,) = north.publish(b"both")
        north.inbound.step()
        south.inbound.step()
        other.restart()  # and so the southern node has forgotten what comes now
        (alone,) = north.publish(b"north alone")
        north.inbound.step()
        south.inbound.step()
        south.gap_over()
        assert north.written.sightings() == [("north", one.url, "relay", found) for found in (both, alone)]
        seen, *recovered = south.written.sightings()
        assert seen == ("south", other.url, "relay", both)
        # Store v1 leaves out meta, which is part of the hash: the sighting is told under both.
        assert ("south", other.url, "store", alone) in recovered
        assert {source for _, _, source, _ in recovered} == {"store"}
        north.state.close()
        south.state.close()


def test_what_a_bridge_dispatches_it_says_it_dispatched(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    Outbound(bridge.api.relay_publish, bridge.context).dispatch([outgoing(b"mine")], threading.Event())
    assert [(source, node) for _, node, source, _ in bridge.written.sightings()] == [("sender", bridge.fake.url)]
