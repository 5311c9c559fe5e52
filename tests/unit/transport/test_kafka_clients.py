"""Clients of kafka-python while no broker answers: what they leave behind, and how often they try."""

from __future__ import annotations

import errno
import re
import threading
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaConnectionError, KafkaTimeoutError
from kafka.net.compat import KafkaNetClient

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.transport.kafka_clients import open_client
from reliable_channel.transport.kafka_producer import CONNECTING_MS, _connect_and_wait
from tests.support.doc_blocks import ROOT

NOWHERE = {"bootstrap_servers": ["127.0.0.1:1"], "bootstrap_timeout_ms": 100}


@pytest.mark.parametrize("kind", [KafkaAdminClient, KafkaConsumer, KafkaProducer])
def test_a_client_that_reaches_no_broker_leaves_nothing_behind(kind: Any) -> None:
    """Each attempt left a thread and four descriptors, and a participant makes ten a minute while Kafka is away."""
    connections: list[Any] = []

    def connect(**options: Any) -> Any:
        connections.append(KafkaNetClient(**options))
        return connections[-1]

    before = {*threading.enumerate()}
    with pytest.raises(KafkaTimeoutError):
        open_client(kind, {**NOWHERE, "kafka_client": connect})
    assert not [thread for thread in threading.enumerate() if thread not in before and "kafka" in thread.name]
    (connection,) = connections
    assert connection._net._closed


def test_a_process_with_too_many_open_files_is_one_that_reaches_no_broker() -> None:
    """The thread that reads a topic ended, and its participant was healthy and received nothing more."""

    def connect(**_: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    with pytest.raises(KafkaConnectionError, match="Too many open files"):
        open_client(KafkaAdminClient, {**NOWHERE, "kafka_client": connect})


@pytest.mark.parametrize(
    ("options", "named"),
    [({"acks": 1, "enable_idempotence": True}, "acks=1"), ({"compression_type": "zip"}, "Not supported codec: zip")],
)
def test_options_that_kafka_python_refuses_are_named(options: dict[str, Any], named: str) -> None:
    """It was "Kafka does not answer", with the advice to start a broker, or an unexpected error."""
    with pytest.raises(ConfigurationError, match=rf"kafka\.client: .*{named}"):
        open_client(KafkaProducer, {**NOWHERE, "api_version": (2, 5), **options})


def test_the_thread_of_a_producer_sleeps_until_the_next_attempt() -> None:
    """kafka-python hands it seconds where it expects ms, and 0 while it connects: it took a third of a core."""
    client = _connect_and_wait(KafkaNetClient, **NOWHERE, reconnect_backoff_ms=30_000)
    try:
        client._manager.update_backoff("away")
        assert client.connection_delay("away") > 1_000
        assert client.connection_delay("connecting") == CONNECTING_MS
    finally:
        client.close()


def test_the_package_opens_no_client_that_would_leave_something_behind() -> None:
    opening = re.compile(r"\bKafka(AdminClient|Consumer|Producer)\(")
    assert not [
        str(file) for file in (ROOT / "reliable_channel").rglob("*.py") if opening.search(file.read_text("utf-8"))
    ]
