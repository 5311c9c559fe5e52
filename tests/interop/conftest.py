"""What the tests against running go-waku nodes share: three nodes of one shard, and settings of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliable_channel.config import Settings, StoreNodeSettings
from reliable_channel.runtime.topics import ensure_evidence_topic, ensure_topics
from tests.support.waiting import until
from tests.support.waku_process import PUBSUB_TOPIC, WakuProcess

_numbers = itertools.count()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WakuProcess]]:
    """Three nodes of one shard: the second and the third are connected to the first."""
    place = tmp_path_factory.mktemp("waku")
    with WakuProcess(place / "0") as first:
        peers = (first.address(),)
        with WakuProcess(place / "1", peers) as second, WakuProcess(place / "2", peers) as third:
            until(lambda: first.sees(second, third), "the nodes find each other")
            yield [first, second, third]


@pytest.fixture(scope="module")
def settings_of(
    broker: Settings, spark_settings: Settings, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[WakuProcess], Settings]:
    """Settings with topics and a run directory of their own, whose Waku node and store is the given one."""

    def made(node: WakuProcess) -> Settings:
        name = f"waku{next(_numbers)}"
        topics = broker.kafka.topics.model_copy(
            update={
                "envelopes": f"{name}.envelopes",
                "outgoing": f"{name}.outgoing",
                "dispatched": f"{name}.dispatched",
                "partitions": 2,
            }
        )
        run_dir: Path = tmp_path_factory.mktemp(name)
        found = spark_settings.with_run_dir(run_dir).model_copy(
            update={
                "kafka": broker.kafka.model_copy(update={"topics": topics}),
                "node": broker.node.model_copy(
                    update={"url": node.url, "pubsub_topic": PUBSUB_TOPIC, "poll_interval_ms": 50}
                ),
                "store": broker.store.model_copy(
                    update={"nodes": [StoreNodeSettings(url=node.url)], "attempts": 1, "first_wait_ms": 10}
                ),
                "bridge": broker.bridge.model_copy(
                    update={
                        "evidence_topic": f"{name}.evidence",
                        "group_id": name,
                        "gap_settle_ms": 0,
                        "gap_retry_ms": 500,
                    }
                ),
            }
        )
        ensure_topics(found.kafka)
        ensure_evidence_topic(found)
        return found

    return made
