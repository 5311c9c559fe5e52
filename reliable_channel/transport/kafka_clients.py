"""Holds the options of the three kinds of kafka-python clients, and opens such clients.

Each kind has options that the others refuse, so one dictionary for all of them cannot hold any of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from reliable_channel.core.errors import ConfigurationError

Client = TypeVar("Client")

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


def open_client(kind: Callable[..., Client], options: Mapping[str, Any]) -> Client:
    """Open a kafka-python client. Raises ``KafkaError`` if it reaches no broker, or if this process has too many open
    files for it, and ``ConfigurationError`` for options that do not go together; nothing is left behind then.

    kafka-python 3.0 leaves the thread and the four descriptors of such a client open, and there is an attempt every ten
    seconds while the brokers are away: within half an hour a participant had no descriptor left."""
    from kafka.errors import KafkaConfigurationError, KafkaConnectionError
    from kafka.net.compat import KafkaNetClient

    connect, connections = options.get("kafka_client", KafkaNetClient), list[Any]()

    def connect_and_keep(**of_client: Any) -> Any:
        connections.append(connect(**of_client))
        return connections[-1]

    try:
        return kind(**{**options, "kafka_client": connect_and_keep})
    except BaseException as error:
        for connection in connections:
            connection.close()
        if isinstance(error, OSError):
            raise KafkaConnectionError(error.strerror) from error
        if isinstance(error, (KafkaConfigurationError, ValueError, RuntimeError)):
            raise ConfigurationError(
                f"kafka-python refuses an option of kafka.client: {error.args[0]}.", "Correct it, or leave it out."
            ) from error
        raise


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """Keyword arguments of ``KafkaConsumer``, ``KafkaProducer`` and ``KafkaAdminClient``; secrets in clear: never print
    them."""

    consumer: Mapping[str, Any]
    producer: Mapping[str, Any]
    admin: Mapping[str, Any]
