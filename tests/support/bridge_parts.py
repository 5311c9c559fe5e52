"""The halves of a bridge one by one, around a fake node and with a list in place of Kafka: no threads, no waiting."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.core.rate_limit import Traffic
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, message_hash
from reliable_channel.transport.bridge_context import BridgeContext, BridgeTopics, SharedRecent
from reliable_channel.transport.bridge_gaps import GapFiller
from reliable_channel.transport.bridge_inbound import Inbound
from reliable_channel.transport.bridge_state import BridgeState
from reliable_channel.transport.bridge_writer import SafeWriter
from reliable_channel.transport.clock import ManualClock
from reliable_channel.transport.dispatch_results import DispatchResult, read_result
from reliable_channel.transport.health import Mode
from reliable_channel.transport.http.client import BoundedHttp
from reliable_channel.transport.kafka_consumer import RawRecord
from reliable_channel.transport.kafka_records import OutRecord, envelope_record, read_record
from reliable_channel.transport.store.client import RetryPolicy, StoreClient
from reliable_channel.transport.store.rest_node import RestStoreNode
from reliable_channel.transport.waku_api import WakuApi
from reliable_channel.transport.waku_receiver import WakuReceiver
from tests.support.fake_waku_faults import Dialect
from tests.support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNetwork, FakeWakuNode

TOPIC = "/app/1/golden/proto"


START_NS = ManualClock().now_ns()


class KafkaList(SafeWriter):
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
        decoded = [read_record(r.value, r.headers) for r in self.records if r.topic == "envelopes"]
        return [one.message.payload for one in decoded if not isinstance(one, Malformed)]

    def evidence(self, kind: str) -> list[dict[str, Any]]:
        records = [json.loads(r.value) for r in self.records if r.topic == "evidence"]
        return [record for record in records if record["kind"] == kind]

    def gaps(self) -> list[dict[str, Any]]:
        return self.evidence("gap")

    def sightings(self) -> list[tuple[str, str, str, str]]:
        """(vantage, node, source, message hash) of every sighting, in order."""
        return [
            (record["vantage"], record["node"], record["source"], message_hash)
            for record in self.evidence("sightings")
            for message_hash in record["hashes"]
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
        self.written = KafkaList()
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


def results(bridge: Parts) -> list[DispatchResult]:
    reported = [read_result(record.value) for record in bridge.written.records if record.topic == "dispatched"]
    return [result for result in reported if result is not None]


def outgoing_request(
    payload: bytes, offset: int = 0, traffic: Traffic = Traffic.FIRST_SEGMENT, at_ns: int = START_NS
) -> RawRecord:
    """An outgoing record as a participant writes it; the request id is its payload."""
    message = WakuMessage(payload, TOPIC, timestamp=at_ns, ephemeral=traffic is Traffic.EPHEMERAL or None)
    record = envelope_record("", message, PUBSUB_TOPIC, None, payload.decode(), traffic)
    return RawRecord(0, offset, None, record.value, record.headers)
