"""Creates the Kafka topic of the evidence records, with long retention, since gaps are queried months later."""

from __future__ import annotations

from reliable_channel.config import Settings
from reliable_channel.runtime.topics import unreachable

RETENTION_MS = 365 * 24 * 3600 * 1000


def ensure_evidence_topic(settings: Settings) -> bool:
    """Create ``bridge.evidence_topic`` unless it exists; whether it was created. Raises ``EnvironmentFault``."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError, TopicAlreadyExistsError

    name = settings.bridge.evidence_topic
    try:
        admin = KafkaAdminClient(**settings.kafka.client_options())
        try:
            if name in set(admin.list_topics()):
                return False
            configs = {"message.timestamp.type": "LogAppendTime", "retention.ms": str(RETENTION_MS)}
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
