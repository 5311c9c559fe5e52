"""Creates the Kafka topics with the settings that the pipeline relies on, and checks that a client can produce.

Key = content topic, ``LogAppendTime`` (the producer's time cannot be trusted: one record dated 2100 would fire every
timer), room for hostile payloads, retention (docs/spec/envelope.md, *Kafka record*).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import closing, suppress
from typing import Any

from reliable_channel.config import KafkaSettings, Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.runtime.logs import quiet_kafka_client
from reliable_channel.transport.kafka_clients import open_client

PROBE_TOPIC = "reliable-channel.probe"
"""The topic for readiness probes on the project's own broker; only probes are written to it."""

EVIDENCE_RETENTION_MS = 365 * 24 * 3600 * 1000
"""One year, because gaps are queried months later."""


def topic_configs(kafka: KafkaSettings) -> dict[str, str]:
    """Return the settings of the topics, by Kafka's names."""
    return {
        "message.timestamp.type": kafka.topics.timestamp_type,
        "max.message.bytes": str(kafka.topics.max_message_bytes),
        "retention.ms": str(kafka.topics.retention_ms),
        "cleanup.policy": "delete",
        # Records stay as the producer compressed them; the broker does not recompress.
        "compression.type": "producer",
    }


def ensure_topics(kafka: KafkaSettings, timeout_s: float = 10.0) -> list[str]:
    """Create the topics that do not exist; returns the names of the created ones.

    Existing topics are left as they are. Raises ``EnvironmentFault`` if the cluster cannot be reached or refuses.
    """
    topics = kafka.topics
    names = (topics.envelopes, topics.outgoing, topics.dispatched)
    return _create_missing(kafka, names, topics.partitions, topics.replication_factor, topic_configs(kafka), timeout_s)


@quiet_kafka_client()
def refuse_topics_without_leader(kafka: KafkaSettings, names: Collection[str]) -> None:
    """Raise ``EnvironmentFault`` if a partition of one of these topics has no leader, or Kafka does not answer."""
    from kafka.errors import KafkaError

    from reliable_channel.transport.kafka_consumer import describe_topic

    try:
        for name in names:
            describe_topic(kafka.clients(), name, with_ends=True)
    except KafkaError as error:
        raise unreachable(kafka, error) from None


def fetch_topic_configs(admin: Any, topics: Collection[str], names: Collection[str]) -> dict[str, dict[str, str]]:
    """The settings ``names`` of topics, by Kafka's names, from a ``KafkaAdminClient``. None of a topic that does not
    exist, or whose settings this account may not read. Raises ``KafkaError``."""
    from kafka.admin import ConfigResource, ConfigResourceType

    wanted = [ConfigResource(ConfigResourceType.TOPIC, topic, dict.fromkeys(names)) for topic in topics]
    described = admin.describe_configs(wanted, config_filter="all").get("topic", {})
    return {
        topic: {name: str(each["value"]) for name, each in settings.items()}
        for topic, settings in described.items()
        if settings
    }


@quiet_kafka_client()
def find_deviations(kafka: KafkaSettings, topics: Collection[str]) -> dict[str, list[str]]:
    """Topic → how its settings differ from those that :func:`ensure_topics` gives, such as ``cleanup.policy=compact
    (delete is needed)``. Nothing of a topic whose settings this account may not read. Raises ``EnvironmentFault``."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    needed = {name: value for name, value in topic_configs(kafka).items() if name != "compression.type"}
    try:
        with closing(open_client(KafkaAdminClient, kafka.clients().admin)) as admin:
            configs = fetch_topic_configs(admin, topics, needed)
    except KafkaError as error:
        raise unreachable(kafka, error) from None
    return {
        topic: [
            f"{name}={there[name]} ({value} is needed)"
            for name, value in needed.items()
            if not _is_enough(there.get(name, value), value)
        ]
        for topic, there in configs.items()
    }


def _is_enough(value: str, needed: str) -> bool:
    """Whether a setting is as needed; more bytes or ms are. -1 ms are all."""
    if needed.isdigit():
        return value == "-1" or int(value) >= int(needed)
    return value == needed


def ensure_evidence_topic(settings: Settings) -> None:
    """Create ``bridge.evidence_topic`` unless it exists. Raises ``EnvironmentFault``."""
    configs = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(EVIDENCE_RETENTION_MS)}
    kafka, names = settings.kafka, [settings.bridge.evidence_topic]
    _create_missing(kafka, names, 1, kafka.topics.replication_factor, configs, 30.0)


@quiet_kafka_client()
def probe(kafka: KafkaSettings, timeout_s: float) -> bool:
    """Check that a client can produce to the project's own broker, by one acknowledged record in the probe topic."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    deadline = time.monotonic() + timeout_s
    try:
        _create_missing(kafka, [PROBE_TOPIC], 1, 1, {"retention.ms": "3600000", "segment.bytes": "1048576"}, timeout_s)
        left = max(1.0, deadline - time.monotonic())
        options = {"acks": "all", "retries": 3, "max_block_ms": int(left * 1000)}
        producer = open_client(KafkaProducer, _limit_options(kafka.clients().producer, timeout_s) | options)
        try:
            producer.send(PROBE_TOPIC, b"").get(timeout=left)
        finally:
            producer.close(timeout=5)
    except (KafkaError, OSError, EnvironmentFault):
        return False
    return True


@quiet_kafka_client()
def _create_missing(
    kafka: KafkaSettings,
    names: Collection[str],
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    timeout_s: float,
) -> list[str]:
    """Create those of the topics that do not exist, and return their names. Raises ``EnvironmentFault``."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError, TopicAlreadyExistsError

    wanted = {"num_partitions": partitions, "replication_factor": replication_factor, "configs": dict(configs)}
    created = []
    try:
        with closing(open_client(KafkaAdminClient, _limit_options(kafka.clients().admin, timeout_s))) as admin:
            existing = set(admin.list_topics())
            for name in [name for name in names if name not in existing]:
                with suppress(TopicAlreadyExistsError):  # another process has just created it
                    admin.create_topics({name: wanted}, timeout_ms=int(timeout_s * 1000), wait_for_metadata=True)
                    created.append(name)
    except KafkaError as error:
        raise unreachable(kafka, error) from None
    return created


def unreachable(kafka: KafkaSettings, error: Exception | None = None) -> EnvironmentFault:
    """Describe the client's error, or that nobody answers, in one sentence; it contains the addresses, which are not
    secret, but no credentials."""
    from reliable_channel.transport.kafka_producer import explain_refusal

    if error is not None and (refusal := explain_refusal(error)) is not None:
        return refusal
    own = kafka.bootstrap_servers is None
    remedy = "Start it with `reliable-channel kafka start`." if own else "Check kafka.bootstrap_servers and security."
    return EnvironmentFault(
        f"Kafka at {kafka.servers} cannot be used ({type(error).__name__ if error else 'no answer'}).", remedy
    )


def _limit_options(client: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Options of a client that gives up after ``timeout_s``."""
    milliseconds = int(timeout_s * 1000)
    options = {"request_timeout_ms": milliseconds, "bootstrap_timeout_ms": milliseconds, "client_id": "setup"}
    return options | dict(client)
