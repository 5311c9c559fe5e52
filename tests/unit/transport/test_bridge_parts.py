"""The halves of the bridge one by one, against fake nodes and with a list in place of Kafka: no threads, no waiting."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import PathSettings, load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.core.rate_limit import Admitted, RateLimitConfig, Traffic
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, message_hash
from reliable_channel.evidence.intake import EvidenceRecord, convert_record, read_position, write
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ENVELOPES
from reliable_channel.pipeline.verdict.gaps import read_open_gaps
from reliable_channel.transport.base import FailureReason, Source
from reliable_channel.transport.bridge import Bridge
from reliable_channel.transport.bridge_context import BridgeContext, BridgeTopics, SharedRecent
from reliable_channel.transport.bridge_gaps import GapFiller
from reliable_channel.transport.bridge_inbound import REJOIN_MAX_S, Inbound
from reliable_channel.transport.bridge_outbound import Outbound
from reliable_channel.transport.bridge_state import BridgeGap, BridgeState
from reliable_channel.transport.bridge_writer import SafeWriter
from reliable_channel.transport.clock import ManualClock
from reliable_channel.transport.dispatch_limit import CountFile, DispatchLimit
from reliable_channel.transport.dispatch_results import DispatchResult, read_result
from reliable_channel.transport.evidence import sightings_record
from reliable_channel.transport.health import Mode
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.kafka_consumer import RawRecord
from reliable_channel.transport.kafka_records import OutRecord, envelope_record, read_record
from reliable_channel.transport.store.client import RetryPolicy, StoreClient, StoreNode
from reliable_channel.transport.store.model import StorePage, StoreQuery
from reliable_channel.transport.store.rest_node import RestStoreNode, StoreFault, StoreNodeError
from reliable_channel.transport.store.source import MemorySource, read_page
from reliable_channel.transport.waku_api import Published, Read, WakuApi
from reliable_channel.transport.waku_health import node_has_rln
from reliable_channel.transport.waku_receiver import WakuReceiver
from tests.support.fake_waku_faults import Dialect
from tests.support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNetwork, FakeWakuNode
from tests.support.waiting import WAIT_S

TOPIC = "/app/1/golden/proto"
OTHER_SHARD = "/waku/2/rs/16/33"
START_NS = ManualClock().now_ns()


class Written(SafeWriter):
    """Keeps what a bridge writes to Kafka."""

    def __init__(self) -> None:
        self.records: list[OutRecord] = []
        self.before_write: Callable[[], None] | None = None
        """Called once."""
        self.max_bytes = 1_000_000

    def write(self, records: Sequence[OutRecord]) -> list[OutRecord]:
        before, self.before_write = self.before_write, None
        if before is not None:
            before()
        self.records += [one for one in records if len(one.value) <= self.max_bytes]
        return [one for one in records if len(one.value) > self.max_bytes]

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

    def __init__(
        self,
        fake: FakeWakuNode,
        place: Path,
        topics: tuple[tuple[str, str | None], ...] = (),
        answers_within_s: float = 0.3,
        channels: tuple[str, ...] = (),
    ) -> None:
        self.fake = fake
        self.clock = ManualClock()
        self.written = Written()
        self.counts: Counter[str] = Counter()
        self.state = BridgeState(place / "state.json")
        self.state.open()
        self.context = BridgeContext(
            BridgeTopics(
                *("envelopes", "outgoing", "dispatched", "evidence"), topics or ((PUBSUB_TOPIC, None),), channels
            ),
            self.state,
            SharedRecent(self.state.recent),
            self.written,
            self.clock,
            lambda name, number: self.counts.update({name: number}),
            fake.url,
            place.name,
        )
        self.api = WakuApi(BoundedHttp(fake.url, answers_within_s))
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

    def make(
        dialect: Dialect = "go-waku",
        topics: tuple[tuple[str, str | None], ...] = (),
        answers_within_s: float = 0.3,
        channels: tuple[str, ...] = (),
        **more: Any,
    ) -> Parts:
        fake = FakeWakuNode(dialect, FakeWakuNetwork(), **more)
        fake.up()
        made.append(Parts(fake, tmp_path, topics, answers_within_s, channels))
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


def test_what_is_safe_is_not_in_the_future_after_the_clock_was_set_back(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.clock.advance(3_600_000)
    bridge.inbound.step()
    bridge.clock.advance(-3_600_000)
    bridge.inbound.step()
    assert bridge.state.acknowledged_ms == bridge.context.now_ms(), "else a gap after a crash would begin in the future"


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


def ask_own_and(bridge: Parts, message: WakuMessage) -> None:
    """Ask the bridge's own node, and a store elsewhere that has a message, for the open gap."""
    own = RestStoreNode(BoundedHttp(bridge.fake.url, 0.3))
    stores = StoreClient([own, OtherStore("elsewhere", message)], RetryPolicy(1))
    bridge.filler = GapFiller(stores, bridge.context, settle_ms=0)
    bridge.gap_over()


def test_envelopes_of_one_timestamp_keep_the_order_of_the_node(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    payloads = [b"%d" % number for number in range(20)]
    bridge.publish(*payloads)
    bridge.publish(b"earlier", at_ns=START_NS - 1)
    bridge.inbound.step()
    assert bridge.written.payloads() == [b"earlier", *payloads]


def test_a_relay_that_hangs_while_the_node_answers_is_named(parts: Callable[..., Parts]) -> None:
    bridge = parts(answers_within_s=3.0)  # what is not slow answers in that time on a busy machine, too
    bridge.inbound.step()
    bridge.fake.faults.slow_s, bridge.fake.faults.paths = 30.0, "/relay/"
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


def test_an_envelope_that_no_node_takes_is_given_up_although_the_clock_was_set_back(
    parts: Callable[..., Parts],
) -> None:
    bridge = parts()
    bridge.inbound.step()

    waits: list[float] = []

    class SetBack(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout
            waits.append(timeout)
            bridge.clock.advance(-86_400_000 if len(waits) == 1 else timeout * 1_000)
            return len(waits) > 100

    def publish(_topic: str, message: WakuMessage) -> Published:
        return Published(FailureReason.NO_PEERS, "nobody")

    Outbound(publish, bridge.context).dispatch([asked(b"x")], SetBack())
    assert [one.status for one in results(bridge)] == ["failed"]
    assert 600 <= sum(waits) < 620, "not at once, either"


@pytest.mark.parametrize("asleep_in", ["the wait", "the attempt"])
def test_an_envelope_that_waited_while_the_machine_slept_is_not_given_up_for_that(
    parts: Callable[..., Parts], asleep_in: str
) -> None:
    bridge = parts()
    bridge.inbound.step()
    answers = [Published(FailureReason.NO_PEERS, "nobody")] * 2

    class Asleep(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            bridge.clock.advance(86_400_000 if asleep_in == "the wait" else 500)
            return False

    def publish(_topic: str, message: WakuMessage) -> Published:
        bridge.clock.advance(86_400_000 if asleep_in == "the attempt" else 1)
        return answers.pop() if answers else Published()

    Outbound(publish, bridge.context).dispatch([asked(b"x")], Asleep())
    assert [one.status for one in results(bridge)] == ["accepted"]


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
    record = envelope_record("", WakuMessage(payload, TOPIC, timestamp=START_NS), topic, Source.SENDER)
    return RawRecord(0, 0, None, record.value, record.headers)


def test_the_first_publish_waits_until_the_node_has_joined(parts: Callable[..., Parts]) -> None:
    bridge = parts("nwaku", joined=())
    outbound = Outbound(bridge.api.relay_publish, bridge.context)
    stopping = threading.Event()
    done: list[Any] = []
    thread = threading.Thread(target=lambda: done.extend(outbound.dispatch([outgoing(b"first")], stopping)))
    thread.start()
    bridge.inbound.step()
    thread.join(120)
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


def results(bridge: Parts) -> list[DispatchResult]:
    found = [read_result(record.value) for record in bridge.written.records if record.topic == "dispatched"]
    return [result for result in found if result is not None]


def asked(
    payload: bytes, offset: int = 0, traffic: Traffic = Traffic.FIRST_SEGMENT, at_ns: int = START_NS
) -> RawRecord:
    """An outgoing record as a participant writes it; the request id is its payload."""
    message = WakuMessage(payload, TOPIC, timestamp=at_ns, ephemeral=traffic is Traffic.EPHEMERAL or None)
    record = envelope_record("", message, PUBSUB_TOPIC, None, payload.decode(), traffic)
    return RawRecord(0, offset, None, record.value, record.headers)


@pytest.mark.parametrize("late_ns", [60_000_000_000, -60_000_000_000])
def test_the_sender_is_told_the_hash_of_the_envelope_that_went_out(parts: Callable[..., Parts], late_ns: int) -> None:
    """Stores refuse what is more than 20 s off, of a sender whose clock is ahead as well."""
    bridge = parts()
    bridge.inbound.step()
    old, fresh = asked(b"old", 0, at_ns=START_NS - late_ns), asked(b"fresh", 1)
    Outbound(bridge.api.relay_publish, bridge.context).dispatch([old, fresh], threading.Event())
    published = {message.payload: message for _, message in bridge.fake.published}
    assert [(one.request_id, one.status) for one in results(bridge)] == [("old", "accepted"), ("fresh", "accepted")]
    assert [one.timestamp for one in results(bridge)] == [published[b"old"].timestamp, START_NS]
    assert published[b"old"].timestamp != START_NS - late_ns
    written = json.loads(next(record.value for record in bridge.written.records if record.topic == "dispatched"))
    assert written["envelope_hash"] == message_hash(PUBSUB_TOPIC, published[b"old"]).hex()


def test_a_record_whose_request_has_no_value_names_none(parts: Callable[..., Parts]) -> None:
    """Kafka has headers without a value; one such record ended the bridge, and every later one at its start."""
    bridge = parts()
    bridge.inbound.step()
    strange, usual = asked(b"strange", 0), asked(b"usual", 1)
    strange = replace(strange, headers=(*strange.headers, ("request_id", None)))
    done = Outbound(bridge.api.relay_publish, bridge.context).dispatch([strange, usual], threading.Event())
    assert done == [strange, usual]
    assert [one.request_id for one in results(bridge)] == ["usual"]


def test_the_sender_is_told_of_a_refusal(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.faults.status, bridge.fake.faults.paths = 400, "/relay/v1/messages"
    Outbound(bridge.api.relay_publish, bridge.context).dispatch([asked(b"refused")], threading.Event())
    assert [(one.status, one.reason) for one in results(bridge)] == [("failed", "refused")]


def test_what_went_before_is_reported_before_the_bridge_waits_for_the_node(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()

    class Waits(threading.Event):
        reported: list[str] | None = None

        def wait(self, timeout: float | None = None) -> bool:
            self.reported = [one.request_id for one in results(bridge)]
            return True

    def publish(_topic: str, message: WakuMessage) -> Published:
        return Published() if message.payload == b"first" else Published(FailureReason.NO_PEERS, "nobody")

    stopping = Waits()
    done = Outbound(publish, bridge.context).dispatch([asked(b"first", 0), asked(b"second", 1)], stopping)
    assert stopping.reported == ["first"]
    assert [raw.offset for raw in done] == [0]


@pytest.mark.parametrize("status", [429, 503])
def test_an_envelope_waits_as_long_as_the_node_says(status: int, parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.faults.status, bridge.fake.faults.paths = status, "/relay/v1/messages"
    bridge.fake.faults.retry_after = "40"
    waits: list[float | None] = []

    class Waits(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            waits.append(timeout)
            bridge.fake.faults.status = None
            return False

    Outbound(bridge.api.relay_publish, bridge.context).dispatch([asked(b"x")], Waits())
    assert [one.status for one in results(bridge)] == ["accepted"]
    assert waits == [40.0]


def test_a_read_waits_as_long_as_the_node_says(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    bridge.fake.faults.status, bridge.fake.faults.retry_after = 503, "40"
    assert bridge.inbound.step() == 40.0


def limited(bridge: Parts, place: Path, messages: int, **more: Any) -> Outbound:
    config = RateLimitConfig(enabled=True, messages_per_epoch=messages, epoch_size_ms=60_000, **more)
    limit: DispatchLimit[Any] = DispatchLimit(config, CountFile(place / "count.json"))
    return Outbound(bridge.api.relay_publish, bridge.context, limit=limit)


def at_epoch_start(bridge: Parts) -> None:
    bridge.clock.advance(60_000 - bridge.clock.now_ns() // 1_000_000 % 60_000)


def test_the_bridge_dispatches_within_the_limit_of_the_membership(parts: Callable[..., Parts], tmp_path: Path) -> None:
    bridge = parts()
    bridge.inbound.step()
    at_epoch_start(bridge)
    outbound = limited(bridge, tmp_path, 2)
    records = [asked(b"c0", 0), asked(b"sync", 1, Traffic.CONTROL), asked(b"again", 2, Traffic.CONTROL)]
    records += [asked(b"c1", 3), asked(b"typing", 4, Traffic.EPHEMERAL)]
    done = outbound.dispatch(records, threading.Event())
    assert [raw.offset for raw in done] == [0, 1, 4]
    for _ in range(2):
        bridge.clock.advance(60_000)
        done += outbound.dispatch([], threading.Event())
    assert [message.payload for _, message in bridge.fake.published] == [b"c0", b"sync", b"c1", b"again"]
    assert [raw.offset for raw in done] == [0, 1, 4, 3, 2]
    told = [(one.request_id, one.status.value) for one in results(bridge)]
    assert told.index(("again", "delayed")) < told.index(("c1", "delayed"))
    assert ("typing", "failed") in told
    assert [one.reason for one in results(bridge) if one.request_id == "typing"] == [FailureReason.DROPPED]
    assert next(one.near for one in results(bridge) if one.near)[:2] == (2, 2)
    held = [record["request_id"] for record in bridge.written.evidence("dispatch")]
    assert held == ["again", "c1"]


def test_a_bridge_started_again_goes_on_with_the_count_and_dispatches_nothing_twice(
    parts: Callable[..., Parts], tmp_path: Path
) -> None:
    bridge = parts()
    bridge.inbound.step()
    at_epoch_start(bridge)
    records = [asked(b"c0", 0), asked(b"sync", 1, Traffic.CONTROL), asked(b"c1", 2)]
    reader = ListReader(records)
    outbound = limited(bridge, tmp_path, 1)

    class TwoEpochs(threading.Event):
        """Stops after the second epoch began."""

    stopping = TwoEpochs()
    reader.when_empty = [lambda: bridge.clock.advance(60_000), stopping.set]
    outbound.run(cast(Any, reader), stopping)
    assert [message.payload for _, message in bridge.fake.published] == [b"c0", b"c1"]
    assert reader.committed == {0: 1}, "the sync message waits, and what follows it is remembered by the bridge"
    again = BridgeState(bridge.state._path)
    bridge.state.close()
    again.open()
    context = replace(bridge.context, state=again)
    stopping = TwoEpochs()
    reader = ListReader(records[1:])
    config = RateLimitConfig(enabled=True, messages_per_epoch=1, epoch_size_ms=60_000)
    limit: DispatchLimit[Any] = DispatchLimit(config, CountFile(tmp_path / "count.json"))
    reader.when_empty = [lambda: bridge.clock.advance(60_000), stopping.set]
    Outbound(bridge.api.relay_publish, context, limit=limit).run(cast(Any, reader), stopping)
    assert [message.payload for _, message in bridge.fake.published] == [b"c0", b"c1", b"sync"]
    assert reader.committed == {0: 3}
    again.close()


class ListReader:
    """Records instead of a Kafka topic; each empty poll calls the next of ``when_empty``."""

    def __init__(self, records: list[RawRecord]) -> None:
        self.records = records
        self.when_empty: list[Callable[[], object]] = []
        self.committed: dict[int, int] = {}

    def poll(self, timeout_ms: int) -> list[RawRecord]:
        found, self.records = self.records, []
        if not found:
            self.when_empty.pop(0)()
        return found

    def commit(self, offsets: dict[int, int]) -> None:
        self.committed |= offsets

    def close(self) -> None: ...


@pytest.mark.parametrize("dialect", ["nwaku", "go-waku"])
@pytest.mark.parametrize("enabled", [None, False, True])
def test_where_the_node_has_rln_the_limit_is_on_or_the_start_says_why_not(
    parts: Callable[..., Parts], dialect: Dialect, enabled: bool | None, caplog: pytest.LogCaptureFixture
) -> None:
    bridge = parts(dialect, rln=True)
    limit: DispatchLimit[Any] = DispatchLimit(RateLimitConfig(enabled=enabled))
    limit.node_has_rln(node_has_rln(bridge.api), bridge.fake.url)
    assert limit.enabled is (enabled is not False)
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == (enabled is not True)
    assert all("RLN is on" in sentence and bridge.fake.url in sentence for sentence in said)


@pytest.mark.parametrize("dialect", ["nwaku", "go-waku"])
def test_where_the_node_has_no_rln_there_is_no_limit(parts: Callable[..., Parts], dialect: Dialect) -> None:
    bridge = parts(dialect)
    assert node_has_rln(bridge.api) is False
    limit: DispatchLimit[Any] = DispatchLimit()
    limit.node_has_rln(False, bridge.fake.url)
    assert not limit.enabled


def test_a_refusal_for_rln_says_that_rln_is_on(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    limit: DispatchLimit[Any] = DispatchLimit()

    def refuse(_topic: str, _message: WakuMessage) -> Published:
        return Published(FailureReason.REFUSED, "Failed to publish: error appending RLN proof to message")

    Outbound(refuse, bridge.context, limit=limit).dispatch([asked(b"x")], threading.Event())
    assert limit.enabled


def test_processes_that_dispatch_through_one_node_share_a_count(tmp_path: Path) -> None:
    config = RateLimitConfig(enabled=True, messages_per_epoch=3)
    one, other = (DispatchLimit[str](config, CountFile.of_node(str(tmp_path), "http://n:1")) for _ in range(2))
    stranger = DispatchLimit[str](config, CountFile.of_node(str(tmp_path), "http://n:2"))
    events = [limit.submit(str(n), Traffic.FIRST_SEGMENT, 5) for n in range(3) for limit in (one, other)]
    assert sum(isinstance(event, Admitted) for some in events for event in some) == 3
    assert [type(event) for event in stranger.submit("x", Traffic.FIRST_SEGMENT, 5)] == [Admitted]


def test_a_damaged_count_dispatches_nothing(tmp_path: Path) -> None:
    (tmp_path / "count.json").write_text('{"epoch": "1"}')
    limit: DispatchLimit[str] = DispatchLimit(RateLimitConfig(enabled=True), CountFile(tmp_path / "count.json"))
    with pytest.raises(EnvironmentFault, match="is not the count"):
        limit.submit("x", Traffic.FIRST_SEGMENT, 5)


FIELDS = st.sampled_from(["request_id", "status", "at_ms", "timestamp", "reason", "until_ms", "near", "utilization"])
VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.floats() | st.sampled_from(["accepted", "delayed", "failed"]),
    lambda inner: st.dictionaries(FIELDS, inner, max_size=8) | st.lists(inner, max_size=3),
)


@given(st.binary(max_size=200) | VALUES.map(lambda value: json.dumps(value).encode()))
def test_a_hostile_dispatch_result_is_passed_over_or_bounded(value: bytes) -> None:
    found = read_result(value)
    assert found is None or (len(found.request_id) <= 64 and len(found.to_bytes()) < 4096)


RESULT = {"request_id": "r", "status": "accepted", "at_ms": 1, "timestamp": 2, "near": [1, 2, 3], "utilization": 0.5}


@pytest.mark.parametrize("field", [*RESULT, "reason", "detail", "until_ms"])
def test_a_dispatch_result_with_one_odd_field_is_passed_over_or_bounded(field: str) -> None:
    assert read_result(json.dumps(RESULT).encode()) is not None
    for odd in (None, True, -1, 10**400, 0.5, "", "x", [], [[]], {}):
        found = read_result(json.dumps({**RESULT, field: odd}).encode())
        assert found is None or len(found.to_bytes()) < 4096


def test_what_a_bridge_dispatches_it_says_it_dispatched(parts: Callable[..., Parts]) -> None:
    bridge = parts()
    bridge.inbound.step()
    Outbound(bridge.api.relay_publish, bridge.context).dispatch([outgoing(b"mine")], threading.Event())
    assert [(source, node) for _, node, source, _ in bridge.written.sightings()] == [("sender", bridge.fake.url)]


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


@pytest.mark.parametrize("way", ["received", "dispatched", "of a store"])
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
    elif way == "dispatched":
        dispatcher = Outbound(bridge.api.relay_publish, bridge.context)
        dispatcher.dispatch([asked(bytes(20_000)), asked(b"fits")], threading.Event())
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


def test_a_bridge_that_is_stopped_twice_keeps_its_state_until_its_threads_have_ended(tmp_path: Path) -> None:
    """The second caller released the lock, and another bridge could take the state."""
    path = tmp_path / "bridge.json"
    topics = BridgeTopics("waku.envelopes", "waku.outgoing", "waku.dispatched", "waku.evidence", ())
    bridge = Bridge(KafkaClients({}, {}, {}), topics, None, StoreClient([]), path)
    bridge._state.open()
    work = threading.Event()
    bridge._threads = [threading.Thread(target=work.wait, args=(WAIT_S,))]
    bridge._threads[0].start()
    callers = [threading.Thread(target=bridge.stop) for _ in range(2)]
    for caller in callers:
        caller.start()
        caller.join(0.1)
    with pytest.raises(EnvironmentFault, match="Another bridge"):
        BridgeState(path).open()
    work.set()
    for caller in callers:
        caller.join(WAIT_S)
    other = BridgeState(path)
    other.open()
    other.close()
