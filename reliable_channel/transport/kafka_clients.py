"""Holds the options of the three kinds of kafka-python clients.

Each kind has options that the others refuse, so one dictionary for all of them cannot hold any of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BOOTSTRAP_MS = 10_000
"""How long a client tries to reach the first broker; kafka-python's default is 30 s."""


def connect_without_creating(**options: Any) -> Any:
    """The ``kafka_client`` of consumers and producers: it creates no topic. A broker with ``auto.create.topics.enable``
    would make a topic that was deleted anew, with its own defaults, as soon as a client asks where its partitions are.
    kafka-python 3.0 has an option for this, and does not pass it on."""
    from kafka.net.compat import KafkaNetClient

    client = KafkaNetClient(**options)
    client.cluster.config["allow_auto_create_topics"] = False
    return client


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """Keyword arguments of ``KafkaConsumer``, ``KafkaProducer`` and ``KafkaAdminClient``; secrets in clear: never print
    them."""

    consumer: Mapping[str, Any]
    producer: Mapping[str, Any]
    admin: Mapping[str, Any]
