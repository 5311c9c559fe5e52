"""``reliable-channel simulate`` as a user runs it: what is then in Kafka, and what the truth says of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from kafka import KafkaConsumer, TopicPartition

from reliable_channel.config import Settings
from reliable_channel.core.wire.sds import SdsMessage, decode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, decode_waku_message
from reliable_channel.runtime.topics import ensure_topics
from reliable_channel.simulation.presets import custom_scenario
from reliable_channel.simulation.truth import Truth
from reliable_channel.simulation.world import simulate

pytestmark = [pytest.mark.kafka, pytest.mark.e2e]

TOPIC = "simulate.envelopes"
Written = dict[tuple[str, int, int], tuple[bytes | None, bytes | None, dict[str, bytes]]]


@pytest.fixture(scope="module")
def written(broker: Settings, tmp_path_factory: pytest.TempPathFactory) -> tuple[Written, Truth, float, str]:
    """A run of the command: the records by coordinates, the truth, how long writing took (s), and what it printed."""
    topics = broker.kafka.topics.model_copy(update={"envelopes": TOPIC})
    ensure_topics(broker.kafka.model_copy(update={"topics": topics}))
    place = tmp_path_factory.mktemp("simulate") / "truth"
    arguments = (
        f"--seed 4 --messages 40 --channels 2 --participants 3 --topics 2 --loss 0.1 --minutes 2 --bad-share 0.3"
        f" --parity-rate 0.25 --rate 100 --topic {TOPIC} --truth {place}"
    )
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "reliable_channel", "simulate", *arguments.split()],
        env={**os.environ, "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": broker.kafka.servers},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    return everything(broker), Truth.load(place), took, done.stdout


def everything(broker: Settings) -> Written:
    consumer = KafkaConsumer(**broker.kafka.clients().consumer, auto_offset_reset="earliest")
    places = [TopicPartition(TOPIC, number) for number in consumer.partitions_for_topic(TOPIC) or ()]
    consumer.assign(places)
    ends = consumer.end_offsets(places)
    found: Written = {}
    while len(found) < sum(ends.values()):
        for records in consumer.poll(timeout_ms=1_000).values():
            for r in records:
                found[r.topic, r.partition, r.offset] = (r.key, r.value, dict(r.headers))
    consumer.close()
    return found


def scenario_records() -> list[tuple[bytes | None, bytes | None]]:
    scenario = custom_scenario(
        seed=4,
        messages=40,
        participants=3,
        channels=2,
        topics=2,
        loss=0.1,
        duration_ms=120_000,
        parity_rate=0.25,
        segment_size=4_096,
        bad_share=0.3,
    )
    return [(record.key, record.value) for record in simulate(scenario).records]


def test_the_records_are_those_of_the_seed_each_content_topic_in_its_order(
    written: tuple[Written, Truth, float, str],
) -> None:
    expected: dict[bytes | None, list[bytes | None]] = {}
    for key, value in scenario_records():
        expected.setdefault(key, []).append(value)
    found: dict[bytes | None, list[bytes | None]] = {}
    partitions: dict[bytes | None, set[int]] = {}
    for (_, partition, _), (key, value, _) in sorted(written[0].items()):
        found.setdefault(key, []).append(value)
        partitions.setdefault(key, set()).add(partition)
    assert found == expected
    assert all(len(places) == 1 for places in partitions.values()), "one content topic stays in one partition"


def test_records_have_the_form_of_the_contract(written: tuple[Written, Truth, float, str]) -> None:
    """docs/spec/envelope.md, *Kafka record*: key = content topic, headers pubsub_topic and source, value = a
    WakuMessage."""
    records, truth, _, _ = written
    bad = {(b.topic, b.partition, b.offset) for b in truth.bad}
    good = {place: record for place, record in records.items() if place not in bad}
    assert len(good) > 50
    for key, value, headers in good.values():
        waku = decode_waku_message(value)
        assert isinstance(waku, WakuMessage)
        assert waku.content_topic.encode() == key
        assert isinstance(decode_sds_message(waku.payload), SdsMessage)
        assert headers == {"pubsub_topic": b"/waku/2/rs/1/0", "source": b"relay"}


def test_the_truth_knows_where_each_bad_record_is(written: tuple[Written, Truth, float, str]) -> None:
    records, truth, _, _ = written
    assert len(truth.bad) >= 12
    for bad in truth.bad:
        assert records[bad.topic, bad.partition, bad.offset][1] == bad.value


def test_the_rate_is_kept_and_the_outcome_said(written: tuple[Written, Truth, float, str]) -> None:
    records, truth, took, printed = written
    assert took >= len(records) / 100 - 0.05, "100 records a second and no more"
    assert f"{len(records)} records of {len(truth.messages)} messages" in printed
