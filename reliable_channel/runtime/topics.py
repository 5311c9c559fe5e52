"""Creates the Kafka topics with the settings that the pipeline relies on, and checks that a client can produce.

Key = content topic, ``LogAppendTime`` (the producer's time cannot be trusted: one record dated 2100 would fire every
timer), room for hostile payloads, retention (docs/spec/envelope.md, *Kafka record*).
"""

from __future__ import annotations

import time
from typing import Any

from reliable_channel.config import KafkaSettings, Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.runtime.logs import quiet_kafka_client

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


@quiet_kafka_client()
def ensure_topics(kafka: KafkaSettings, timeout_s: float = 10.0) -> list[str]:
    """Create the topics that do not exist; returns the names of the created ones.

    Existing topics are left as they are. Raises ``EnvironmentFault`` if the cluster cannot be reached or refuses.
    """
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError, TopicAlreadyExistsError

    topics = kafka.topics
    try:
        admin = KafkaAdminClient(**_clients(kafka, timeout_s)[0])
        try:
            existing = set(admin.list_topics())
            created = []
            for name in (topics.envelopes, topics.outgoing, topics.dispatched):
                if name in existing:
                    continue
                wanted = {
                    "num_partitions": topics.partitions,
                    "replication_factor": topics.replication_factor,
                    "configs": topic_configs(kafka),
                }
                try:
                    admin.create_topics({name: wanted}, timeout_ms=int(timeout_s * 1000), wait_for_metadata=True)
                    created.append(name)
                except TopicAlreadyExistsError:
                    pass
            return created
        finally:
            admin.close()
    except KafkaError as error:
        raise unreachable(kafka, error) from None


def ensure_evidence_topic(settings: Settings) -> bool:
    """Create ``bridge.evidence_topic`` unless it exists; returns whether it was created. Raises
    ``EnvironmentFault``."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError, TopicAlreadyExistsError

    name = settings.bridge.evidence_topic
    try:
        admin = KafkaAdminClient(**settings.kafka.clients().admin)
        try:
            if name in set(admin.list_topics()):
                return False
            configs = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(EVIDENCE_RETENTION_MS)}
            wanted = {
                "num_partitions": 1,
                "replication_factor": settings.kafka.topics.replication_factor,
                "configs": configs,
            }
            admin.create_topics({name: wanted}, timeout_ms=30_000, wait_for_metadata=True)
            return True
        except TopicAlreadyExistsError:
            return False
        finally:
            admin.close()
    except KafkaError as error:
        raise unreachable(settings.kafka, error) from None


@quiet_kafka_client()
def probe(kafka: KafkaSettings, timeout_s: float) -> bool:
    """Check that a client can produce to the project's own broker, by one acknowledged record in the probe topic."""
    from kafka import KafkaAdminClient, KafkaProducer
    from kafka.errors import KafkaError, TopicAlreadyExistsError

    deadline = time.monotonic() + timeout_s
    try:
        for_admin, for_producer = _clients(kafka, timeout_s)
        admin = KafkaAdminClient(**for_admin)
        try:
            if PROBE_TOPIC not in admin.list_topics():
                configs = {"retention.ms": "3600000", "segment.bytes": "1048576"}
                admin.create_topics(
                    {PROBE_TOPIC: {"num_partitions": 1, "replication_factor": 1, "configs": configs}},
                    wait_for_metadata=True,
                )
        except TopicAlreadyExistsError:
            pass
        finally:
            admin.close()
        left = max(1.0, deadline - time.monotonic())
        producer = KafkaProducer(**for_producer, acks="all", retries=3, max_block_ms=int(left * 1000))
        try:
            producer.send(PROBE_TOPIC, b"").get(timeout=left)
        finally:
            producer.close(timeout=5)
    except (KafkaError, OSError):
        return False
    return True


def unreachable(kafka: KafkaSettings, error: Exception) -> EnvironmentFault:
    """Describe the client's error in one sentence; it contains the addresses, which are not secret, but no
    credentials."""
    own = kafka.bootstrap_servers is None
    remedy = "Start it with `reliable-channel kafka start`." if own else "Check kafka.bootstrap_servers and security."
    return EnvironmentFault(f"Kafka at {kafka.servers} cannot be used ({type(error).__name__}).", remedy)


def _clients(kafka: KafkaSettings, timeout_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of an admin client and of a producer that give up after ``timeout_s``."""
    milliseconds = int(timeout_s * 1000)
    clients = kafka.clients()
    options = {"request_timeout_ms": milliseconds, "bootstrap_timeout_ms": milliseconds, "client_id": "setup"}
    return options | dict(clients.admin), options | dict(clients.producer)
