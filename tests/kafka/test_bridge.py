"""The bridge between a fake Waku node and the real broker: nothing is lost that the node or a store still has."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, TopicPartition

from reliable_channel.config import Settings, StoreNodeSettings
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.runtime.build import kafka_node, make_bridge
from reliable_channel.runtime.topics import ensure_evidence_topic, ensure_topics
from reliable_channel.transport.base import Received, Sent, Source
from reliable_channel.transport.bridge import Bridge
from reliable_channel.transport.health import HealthState
from reliable_channel.transport.kafka_records import KafkaEnvelope, read_record
from tests.support.environment import environment
from tests.support.fake_waku_node import PUBSUB_TOPIC, FakeWakuNetwork, FakeWakuNode
from tests.support.odd_topics import admin, configure
from tests.support.waiting import until

pytestmark = pytest.mark.kafka

TOPIC = "/app/1/golden/proto"
_numbers = itertools.count()


@pytest.fixture
def network() -> FakeWakuNetwork:
    return FakeWakuNetwork()


@pytest.fixture
def fake(network: FakeWakuNetwork) -> Iterator[FakeWakuNode]:
    with FakeWakuNode("nwaku", network) as node:
        yield node


@pytest.fixture
def here(broker: Settings, fake: FakeWakuNode, tmp_path: Path) -> Settings:
    """The configuration with topics, run directory, node and store of its own."""
    name = f"bridge-{os.getpid()}-{next(_numbers)}"
    topics = broker.kafka.topics.model_copy(
        update={
            "envelopes": f"{name}.envelopes",
            "outgoing": f"{name}.outgoing",
            "dispatched": f"{name}.dispatched",
            "partitions": 2,
        }
    )
    node = {"url": fake.url, "pubsub_topic": PUBSUB_TOPIC, "poll_interval_ms": 20, "max_backoff_ms": 100}
    bridge = {"evidence_topic": f"{name}.evidence", "gap_settle_ms": 0, "gap_retry_ms": 100, "group_id": name}
    found = broker.with_run_dir(tmp_path).model_copy(
        update={
            "kafka": broker.kafka.model_copy(update={"topics": topics}),
            "node": broker.node.model_copy(update=node),
            "store": broker.store.model_copy(
                update={"nodes": [StoreNodeSettings(url=fake.url)], "attempts": 1, "first_wait_ms": 10}
            ),
            "bridge": broker.bridge.model_copy(update=bridge),
        }
    )
    ensure_topics(found.kafka)
    ensure_evidence_topic(found)
    return found


def values(settings: Settings, topic: str) -> list[Any]:
    """Every record of a topic."""
    consumer = KafkaConsumer(**settings.kafka.clients().consumer, enable_auto_commit=False)
    partitions = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    ends = consumer.end_offsets(partitions)
    found = []
    while any(consumer.position(tp) < end for tp, end in ends.items()):
        for records in consumer.poll(timeout_ms=200).values():
            found += records
    consumer.close()
    return found


def offset_kept(settings: Settings) -> int:
    """How many outgoing records the bridge need not read again."""
    topic = settings.kafka.topics.outgoing
    options = settings.kafka.clients().consumer
    consumer = KafkaConsumer(**options, group_id=settings.bridge.group_id, enable_auto_commit=False)
    kept = sum(consumer.committed(TopicPartition(topic, p)) or 0 for p in consumer.partitions_for_topic(topic) or ())
    consumer.close(autocommit=False)
    return kept


def envelopes(settings: Settings) -> list[KafkaEnvelope]:
    found = [read_record(r.value, r.headers) for r in values(settings, settings.kafka.topics.envelopes)]
    assert not any(isinstance(record, Malformed) for record in found)
    return found  # type: ignore[return-value]


def evidence(settings: Settings) -> list[dict[str, Any]]:
    """What the evidence topic says of gaps and dispatches."""
    found = [json.loads(r.value) for r in values(settings, settings.bridge.evidence_topic)]
    return [record for record in found if record["kind"] != "sightings"]


def publish(network: FakeWakuNetwork, payload: bytes, topic: str = TOPIC, ephemeral: bool | None = None) -> None:
    network.publish(PUBSUB_TOPIC, WakuMessage(payload, topic, timestamp=time.time_ns(), ephemeral=ephemeral))


@pytest.fixture
def bridge(here: Settings) -> Iterator[Bridge]:
    running = make_bridge(here)
    running.start()
    until(lambda: running.status().reachable)
    yield running
    running.stop()
    running.stop()
    assert running.failure is None


def test_what_does_not_fit_into_its_topic_is_a_gap_and_keeps_nothing_else_out(
    bridge: Bridge, here: Settings, network: FakeWakuNetwork
) -> None:
    """Every such envelope was a wait of up to ten seconds for all others, and recorded nowhere."""
    configure(here, here.kafka.topics.envelopes, max_message_bytes="10000")

    def is_recorded() -> bool:
        publish(network, os.urandom(50_000))
        return bridge.status().gaps > 0

    until(is_recorded, "the broker takes them all", every_s=0.1)  # until it knows the limit
    for number in range(3):
        publish(network, os.urandom(50_000))
        publish(network, b"%d" % number)
    small = {b"0", b"1", b"2"}
    until(lambda: {one.message.payload for one in envelopes(here)} >= small, every_s=0.1)
    assert {record["status"] for record in evidence(here) if record["cause"] == "too_large"} == {"unfilled"}
    assert bridge.status().open_gaps == 0


def test_what_the_node_receives_is_in_kafka_once_with_key_and_headers(
    bridge: Bridge, here: Settings, fake: FakeWakuNode, network: FakeWakuNetwork
) -> None:
    fake.faults.repeat_reads = True
    for number in range(40):
        publish(network, b"%d" % number, f"/app/1/{number % 3}/proto")
    until(lambda: bridge.status().received == 40)
    records = values(here, here.kafka.topics.envelopes)
    assert sorted(int(read_record(r.value, r.headers).message.payload) for r in records) == list(range(40))  # type: ignore[union-attr]
    for record in records:
        found = read_record(record.value, record.headers)
        assert isinstance(found, KafkaEnvelope)
        assert (record.key.decode(), found.pubsub_topic, found.source) == (
            found.message.content_topic,
            PUBSUB_TOPIC,
            Source.RELAY,
        )


def test_a_participant_on_kafka_talks_through_the_bridge(
    bridge: Bridge, here: Settings, fake: FakeWakuNode, network: FakeWakuNetwork
) -> None:
    events: list[Any] = []
    node = kafka_node(here)
    node.add_listener(events.append)
    node.subscribe([TOPIC])
    node.start()
    node.send(WakuMessage(b"out", TOPIC))
    publish(network, b"in")
    until(lambda: len([e for e in events if isinstance(e, Received)]) == 2 and any(isinstance(e, Sent) for e in events))
    node.stop()
    (sent,) = [e for e in events if isinstance(e, Sent)]
    got = {e.envelope.message.payload: e.envelope for e in events if isinstance(e, Received)}
    assert got[b"out"].source is Source.SENDER
    assert got[b"out"].message_hash == sent.message_hash
    assert got[b"in"].source is Source.RELAY
    assert [message_hash(*pair) for pair in fake.published] == [sent.message_hash]


def test_the_health_of_a_participant_on_kafka_is_that_of_the_node_behind_the_bridge(
    here: Settings, fake: FakeWakuNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reliable_channel.transport.bridge.INTERVAL_S", 0.1)
    fake.mesh_peers = 5
    bridge, node = make_bridge(here), kafka_node(here)
    node.start()
    assert node.health().state is HealthState.HEALTHY, "Kafka answers, and a bridge may still be heard"
    bridge.start()
    try:
        until(lambda: node.health().relay_peers == 5)
        assert node.health().state is HealthState.MINIMALLY_HEALTHY
        fake.down()
        until(lambda: node.health().state is HealthState.UNHEALTHY)
        fake.restart()
        until(lambda: node.health().state is HealthState.MINIMALLY_HEALTHY)
    finally:
        bridge.stop()
    until(lambda: "the bridge was stopped" in node.health().detail)
    assert node.health().state is HealthState.UNHEALTHY
    node.stop()


def test_while_the_node_is_down_outgoing_envelopes_wait_in_order_and_lose_nothing(
    bridge: Bridge, here: Settings, fake: FakeWakuNode, network: FakeWakuNetwork
) -> None:
    publish(network, b"before")
    until(lambda: bridge.status().received == 1)
    fake.down()
    node = kafka_node(here)
    node.start()
    for number in range(10):
        node.send(WakuMessage(b"%d" % number, TOPIC))
    publish(network, b"in the store and not in the cache of a restarted node")
    until(lambda: not bridge.status().reachable)
    fake.restart()
    until(lambda: bridge.status().dispatched == 10 and bridge.status().open_gaps == 0 and bridge.status().recovered)
    node.stop()
    assert [m.payload for _, m in fake.published] == [b"%d" % n for n in range(10)]
    by_source = {s: [r.message.payload for r in envelopes(here) if r.source is s] for s in Source}
    assert sorted(by_source[Source.SENDER]) == [b"%d" % n for n in range(10)]
    assert by_source[Source.STORE] == [b"in the store and not in the cache of a restarted node"]
    # The only store is the node that was down: it gives what it has, and does not prove that nothing else was sent.
    ended = [e for e in evidence(here) if e["kind"] == "gap" and e["status"] != "open"]
    answers = {(e["cause"], e["status"], *e["stores"].values()) for e in ended}
    assert answers == {("node_unreachable", "unfilled", "was_unreachable")}
    assert sum(e["recovered"] for e in ended) == 1


def test_a_full_cache_is_a_gap_that_the_store_fills(
    bridge: Bridge, here: Settings, fake: FakeWakuNode, network: FakeWakuNetwork
) -> None:
    fake.faults.slow_s, fake.faults.paths = 1.0, "/relay/v1/messages"
    for number in range(130):
        publish(network, b"%d" % number)
    until(lambda: bridge.status().received + bridge.status().recovered == 130)
    until(lambda: bridge.status().open_gaps == 0)
    assert sorted(int(r.message.payload) for r in envelopes(here)) == list(range(130))
    assert "cache_full" in {e["cause"] for e in evidence(here)}


def test_without_a_store_a_gap_is_recorded_as_unfilled(here: Settings, fake: FakeWakuNode) -> None:
    alone = here.model_copy(update={"store": here.store.model_copy(update={"nodes": []})})
    for _ in range(2):
        running = make_bridge(alone)
        running.start()
        until(lambda running=running: running.status().reachable and running.status().open_gaps == 0)  # type: ignore[misc]
        running.stop()
    gaps = [e for e in evidence(alone) if e["kind"] == "gap"]
    assert {(e["cause"], e["status"]) for e in gaps} == {("bridge_restart", "open"), ("bridge_restart", "unfilled")}


def test_a_bridge_that_has_lost_its_state_has_a_gap_from_its_last_sighting(
    here: Settings, network: FakeWakuNetwork
) -> None:
    state = Path(here.paths.run_dir) / "bridge" / "state.json"
    first = make_bridge(here)
    first.start()
    until(lambda: first.status().reachable)
    publish(network, b"seen")
    until(lambda: len(envelopes(here)) == 1)
    first.stop()
    assert evidence(here) == []
    state.unlink()
    for number in range(60):  # more than the cache of the node holds
        publish(network, b"%d" % number)
    second = make_bridge(here)
    second.start()
    until(lambda: {*{e["name"]: e["status"] for e in evidence(here)}.values()} == {"filled"})
    second.stop()
    assert second.failure is None
    (gap,) = [found for found in evidence(here) if found["status"] == "filled"]
    assert gap["cause"] == "bridge_restart"
    assert sorted(e.message.payload for e in envelopes(here)) == sorted([b"seen", *(b"%d" % n for n in range(60))])
    elsewhere = here.model_copy(update={"bridge": here.bridge.model_copy(update={"vantage": "new"})})
    state.unlink()
    new = make_bridge(elsewhere)
    new.start()
    until(lambda: new.status().reachable)
    assert new.status().gaps == 0
    new.stop()


def test_an_envelope_that_the_node_refuses_is_recorded_and_holds_up_nobody(
    bridge: Bridge, here: Settings, fake: FakeWakuNode
) -> None:
    node = kafka_node(here)
    node.start()
    node.send(WakuMessage(b"x", TOPIC), "/waku/2/rs/16/99")
    node.send(WakuMessage(b"y", TOPIC))
    until(lambda: bridge.status().dispatched == 1)
    node.stop()
    assert [m.payload for _, m in fake.published] == [b"y"]
    (failed,) = [e for e in evidence(here) if e["kind"] == "dispatch"]
    assert (failed["event"], failed["reason"], failed["content_topic"]) == ("failed", "refused", TOPIC)


def test_an_answer_of_a_dead_service_after_the_message_went_out_is_no_second_message(
    bridge: Bridge, here: Settings, fake: FakeWakuNode
) -> None:
    fake.faults.publish_but_fail = 500
    node = kafka_node(here)
    node.start()
    node.send(WakuMessage(b"once", TOPIC))
    until(lambda: fake.published)
    fake.faults.publish_but_fail = None
    until(lambda: bridge.status().dispatched == 1)
    node.stop()
    assert len({message_hash(*pair) for pair in fake.published}) == 1
    assert [r.message.payload for r in envelopes(here)] == [b"once"]


def test_in_edge_mode_it_uses_lightpush_and_filter(
    here: Settings, fake: FakeWakuNode, network: FakeWakuNetwork
) -> None:
    edge = here.model_copy(
        update={
            "node": here.node.model_copy(update={"mode": "edge"}),
            "bridge": here.bridge.model_copy(update={"content_topics": [TOPIC]}),
        }
    )
    running = make_bridge(edge)
    running.start()
    until(lambda: running.status().reachable)
    publish(network, b"in")
    publish(network, b"of no interest", "/app/1/other/proto")
    node = kafka_node(edge)
    node.start()
    node.send(WakuMessage(b"out", TOPIC))
    until(lambda: running.status().received == 1 and running.status().dispatched == 1)
    node.stop()
    running.stop()
    assert {(r.message.payload, r.source) for r in envelopes(edge)} == {(b"in", Source.FILTER), (b"out", Source.SENDER)}
    assert "/lightpush/v3/message" in {path for _, path in fake.requests}


@pytest.mark.parametrize("change", [{"mode": "edge"}, {"pubsub_topic": None}])
def test_a_bridge_that_does_not_know_what_to_read_says_so(here: Settings, change: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"bridge\.content_topics"):
        make_bridge(here.model_copy(update={"node": here.node.model_copy(update=change)}))


def test_a_second_bridge_on_the_same_run_directory_is_refused(bridge: Bridge, here: Settings) -> None:
    with pytest.raises(EnvironmentFault, match="Another bridge"):
        make_bridge(here).start()


def test_bridges_of_one_group_each_dispatch_every_envelope_and_share_how_far_they_came(
    here: Settings, fake: FakeWakuNode, network: FakeWakuNetwork, tmp_path: Path
) -> None:
    with FakeWakuNode("nwaku", network) as other_node:
        there = here.with_run_dir(tmp_path / "other")
        node = there.node.model_copy(update={"url": other_node.url})
        there = there.model_copy(update={"node": node, "bridge": there.bridge.model_copy(update={"vantage": "other"})})
        one, other = make_bridge(here), make_bridge(there)
        events: list[Any] = []
        sender = kafka_node(here)
        sender.add_listener(events.append)
        sender.start()
        one.start()
        other.start()
        try:
            for number in range(20):
                sender.send(WakuMessage(b"%d" % number, TOPIC))
            until(lambda: one.status().dispatched == other.status().dispatched == 20)
            until(lambda: offset_kept(here) == 20)
            one.stop()
            sender.send(WakuMessage(b"while one is away", TOPIC))
            until(lambda: other.status().dispatched == 21 and offset_kept(here) == 21)
            one = make_bridge(here)
            one.start()
            sender.send(WakuMessage(b"back", TOPIC))
            until(lambda: one.status().dispatched == 1 and other.status().dispatched == 22)
            until(lambda: len([event for event in events if isinstance(event, Sent)]) == 22)
        finally:
            for running in (one, other):
                running.stop()
            sender.stop()
    published = [message_hash(*pair) for each in (fake, other_node) for pair in each.published]
    assert (len(published), len(set(published))) == (43, 22)


def test_a_bridge_of_whose_position_kafka_knows_nothing_any_more_says_what_it_repeats(
    here: Settings, fake: FakeWakuNode, caplog: pytest.LogCaptureFixture
) -> None:
    """Kafka forgets it after a week without a bridge; what the topic still had went out again, without a word."""
    sender = kafka_node(here)
    sender.start()
    for number in range(3):
        sender.send(WakuMessage(b"%d" % number, TOPIC))

    def dispatch_all() -> None:
        running = make_bridge(here)
        running.start()
        until(lambda: running.status().dispatched == 3)
        running.stop()

    dispatch_all()
    assert "no position" not in caplog.text
    client = admin(here)
    client.delete_groups([here.bridge.group_id])
    client.close()
    dispatch_all()
    sender.stop()
    assert f"all 3 envelopes in {here.kafka.topics.outgoing} are dispatched" in caplog.text


def test_the_loop_copies_outgoing_to_envelopes_as_the_sender(here: Settings) -> None:
    loop = make_bridge(here, loop=True)
    loop.start()
    events: list[Any] = []
    node = kafka_node(here)
    node.add_listener(events.append)
    node.subscribe([TOPIC])
    node.start()
    for number in range(300):
        node.send(WakuMessage(b"%d" % number, TOPIC))
    until(lambda: len([e for e in events if isinstance(e, Received)]) == 300)
    node.stop()
    loop.stop()
    assert [r.message.payload for r in envelopes(here)] == [b"%d" % n for n in range(300)]
    assert {r.source for r in envelopes(here)} == {Source.SENDER}


@pytest.fixture
def started(here: Settings) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Starts the command; none outlives the test."""
    processes = []

    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "reliable_channel", "bridge"]
        process = subprocess.Popen(
            command, env=environment(here), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Bridge between"), line + process.stdout.read()
        return process

    yield start
    for process in processes:
        process.kill()


def test_a_node_that_never_answers_is_said_at_once_with_the_counts_and_an_exit_code(
    here: Settings, fake: FakeWakuNode
) -> None:
    fake.down()
    ended = subprocess.run(
        [sys.executable, "-m", "reliable_channel", "bridge", "--seconds", "1"],
        env=environment(here),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    started, said, *_, counts = ended.stdout.splitlines()
    assert started.startswith("Bridge between")
    assert said.startswith(f"{fake.url} cannot be reached")
    assert counts.startswith("nothing yet; not connected: ")
    assert re.search(r"^\d{4}-\d\d-\d\dT[\d:.]+Z WARNING .* cannot be reached", ended.stderr, re.MULTILINE)
    assert "The node was never reached" in ended.stderr


@pytest.mark.slow
def test_killed_again_and_again_it_loses_nothing_that_a_store_has(
    here: Settings,
    fake: FakeWakuNode,
    network: FakeWakuNetwork,
    started: Callable[[], subprocess.Popen[str]],
) -> None:
    node = kafka_node(here)
    node.start()
    number = itertools.count()

    def talk(count: int) -> None:
        for _ in range(count):
            n = next(number)
            publish(network, b"in %d" % n)
            node.send(WakuMessage(b"out %d" % n, TOPIC))
            time.sleep(0.005)

    process = started()
    talk(40)
    until(lambda: (Path(here.paths.run_dir) / "bridge" / "state.json").exists())
    until(lambda: offset_kept(here) > 0)  # what is kept is not dispatched again, whatever happens
    for _ in range(3):
        talk(30)
        process.send_signal(signal.SIGKILL)
        process.wait(120)
        talk(60)  # more than the node's cache holds
        process = started()
    talk(20)
    total = next(number)
    expected = {b"%s %d" % (way, n) for way in (b"in", b"out") for n in range(total)}
    until(lambda: {r.message.payload for r in envelopes(here)} >= expected)
    # A gap that was open when it was killed is widened by the next one, and nothing stays open under another name.
    until(lambda: {*{e["name"]: e["status"] for e in evidence(here)}.values()} == {"filled"})
    process.send_signal(signal.SIGTERM)
    assert process.wait(120) == 143
    assert process.stdout is not None
    assert "dispatched" in process.stdout.read().splitlines()[-1]  # the counts at the end
    node.stop()
    assert {r.message.payload for r in envelopes(here)} == expected
    assert "bridge_restart" in {e["cause"] for e in evidence(here)}
    assert [m.payload for _, m in fake.published if m.payload == b"out 0"] == [b"out 0"]
