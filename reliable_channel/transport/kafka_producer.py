"""Produces envelopes to Kafka, idempotently, acknowledged by all replicas, with a bounded buffer."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from kafka import KafkaProducer
from kafka.errors import (
    AuthorizationError,
    IllegalStateError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    SaslAuthenticationFailedError,
)
from kafka.future import Future
from kafka.net.compat import KafkaNetClient

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.backoff import Backoff
from reliable_channel.transport.base import FailureReason, SendBufferFull
from reliable_channel.transport.byte_budget import ByteBudget
from reliable_channel.transport.kafka_clients import BOOTSTRAP_MS, open_client
from reliable_channel.transport.kafka_records import OutRecord
from reliable_channel.transport.threads import RoundFaults, join

BUFFER_BYTES = 32 * 1024 * 1024
"""Bytes of records that Kafka has not acknowledged; a further one waits for room."""
MAX_REQUEST_BYTES = 2 * 1024 * 1024
BATCH_BYTES = 512 * 1024
"""Half of the brokers' default maximum (``message.max.bytes``). Compared with 256 KiB, fewer requests save a tenth of
the CPU time of large envelopes and more (bench/channel.py)."""
CONNECTING_MS = 50.0
"""How long the thread of a producer sleeps at most while it connects, or has too many requests open."""
OLD_S = 5.0
"""How old (s) a producer is whose refusal may be out of date."""
_LONGEST_TOPIC = 249
RECORD_OVERHEAD = 256
"""Bytes counted per record beside key and value: headers, futures."""

Done = Callable[[FailureReason | None, str], None]
"""Called once per accepted record, on the producer's thread: ``None`` for success, else reason and detail."""
Stored = Callable[[int, int], None]
"""Called with the partition and the offset of a record that Kafka has."""


def open_producer(options: Mapping[str, Any]) -> KafkaProducer:
    """A producer whose records all succeed or fail. Raises ``KafkaError`` if no broker answers.

    kafka-python 3 drops the id of an idempotent producer when a record that was sent is not acknowledged within
    ``delivery_timeout_ms``, and never asks for another one: nothing is sent any more, and nothing fails. Here that is
    an error that ends the producer, with which all of its records fail."""
    connect = options.get("kafka_client", KafkaNetClient)
    producer = open_client(KafkaProducer, {**options, "kafka_client": partial(_connect_and_wait, connect)})
    transactions = producer._transaction_manager  # none if the configuration wants no idempotence
    if transactions is not None:
        lost = KafkaTimeoutError("A record was not acknowledged in time.")
        transactions.reset_producer_id = lambda: transactions.transition_to_fatal_error(lost)
    return producer


def _connect_and_wait(connect: Callable[..., Any], **options: Any) -> Any:
    """A client of a producer whose thread sleeps while a broker cannot be reached, or throttles it.

    The thread of kafka-python 3.0 takes the seconds until the next attempt for ms, and does not sleep at all while it
    connects or is throttled: it used a third of a core. What arrives wakes it."""
    client = connect(**options)

    def count_wait_ms(node_id: Any) -> float:
        attempt_ms = 1000 * client._manager.connection_delay(node_id)
        return float(attempt_ms or client.throttle_delay(node_id) or CONNECTING_MS)

    client.connection_delay = count_wait_ms
    return client


class EnvelopeProducer:
    """Writes envelopes into topics. ``options`` are those of kafka-python's producer.

    Order within a partition is kept also when requests are repeated (``enable_idempotence``); a record is a success
    only when all in-sync replicas have it. Thread-safe."""

    def __init__(
        self,
        options: Mapping[str, Any],
        max_block_s: float = 60.0,
        delivery_timeout_s: float = 120.0,
    ) -> None:
        self._budget = ByteBudget(BUFFER_BYTES)
        self._max_block_s = max_block_s
        self._numbers = itertools.count()
        self._open: dict[int, Done] = {}
        self._topics: set[str] = set()
        """Those whose partitions are known."""
        self._changed = threading.Condition()
        self._renewing: threading.Thread | None = None
        self._closed = threading.Event()
        self._options: dict[str, Any] = {
            "acks": "all",
            "enable_idempotence": True,
            "bootstrap_timeout_ms": BOOTSTRAP_MS,
            "linger_ms": 5,
            "batch_size": BATCH_BYTES,
            "max_request_size": MAX_REQUEST_BYTES,
            "max_block_ms": int(max_block_s * 1000),
            "delivery_timeout_ms": int(delivery_timeout_s * 1000),
            "request_timeout_ms": int(min(30.0, delivery_timeout_s / 2) * 1000),  # a second request must be possible
            **options,
        }
        with translate_errors():
            self._producer = open_producer(self._options)
        self._made_at = time.monotonic()

    def send(
        self, record: OutRecord, done: Done, max_wait_s: float | None = None, stored: Stored = lambda *_: None
    ) -> None:
        """Queue one record; ``stored`` is called before ``done`` has a success. Raises ``SendBufferFull`` when there is
        no room for ``max_wait_s``, or ``max_block_s`` where that is ``None``."""
        size = len(record.key) + len(record.value) + RECORD_OVERHEAD
        wait_s = self._max_block_s if max_wait_s is None else max_wait_s
        producer = self._await_producer(wait_s)
        self._budget.take(size, wait_s)

        number = next(self._numbers)

        def on_settled(reason: FailureReason | None, detail: str) -> None:
            if self._open.pop(number, None) is not None:  # once: a forced close may come before the answer
                self._budget.give_back(size)
                done(reason, detail)

        self._open[number] = on_settled
        try:
            future = producer.send(record.topic, value=record.value, key=record.key, headers=list(record.headers))
        except MessageSizeTooLargeError:
            on_settled(FailureReason.TOO_LARGE, f"a record of {size} bytes is over the producer's limit")
            return
        except (KafkaError, ValueError) as error:  # the latter: the topic has just been deleted
            self._open.pop(number, None)
            self._budget.give_back(size)
            raise SendBufferFull(
                f"Kafka does not take records ({type(error).__name__}).",
                "Check that the brokers and the topic are there.",
            ) from None

        def on_error(error: BaseException) -> None:
            reason = reason_of(error)
            if not self._renew_if_failed(producer) and reason is FailureReason.TOO_LARGE:
                reason = FailureReason.UNREACHABLE  # another record was: what waits behind it fails with its error
            on_settled(reason, type(error).__name__)

        def on_success(metadata: Any) -> None:
            stored(metadata.partition, metadata.offset)
            on_settled(None, "")

        future.add_callback(on_success)
        future.add_errback(on_error)

    def _await_producer(self, wait_s: float) -> KafkaProducer:
        """The producer, once it is renewed after a refusal. One that was made while rights were missing has failed from
        the beginning; Kafka is asked again instead of reporting what it said then."""
        with self._changed:
            # Who cannot wait tries again in a moment. A refusal that is not old is reported, or he would try for ever.
            if wait_s > 0 or time.monotonic() - self._made_at >= OLD_S:
                self._renew_if_failed(self._producer)
            if not self._changed.wait_for(lambda: self._renewing is None, wait_s):
                raise SendBufferFull("Kafka refused a record, and cannot be reached again.", "Try again later.")
            return self._producer

    def _renew_if_failed(self, producer: KafkaProducer) -> bool:
        """Replace a producer that takes nothing any more; returns ``False`` if an earlier error has ended it. To
        kafka-python every error that a repetition does not mend ends an idempotent producer for good, also when one
        record was too large, or rights were granted since."""
        transactions = producer._transaction_manager
        if transactions is None:
            return True
        with self._changed:
            is_new = producer is self._producer and self._renewing is None and not self._closed.is_set()
            if is_new and transactions.has_fatal_error():
                self._renewing = threading.Thread(target=self._renew, name="kafka-producer-renewal", daemon=True)
                self._renewing.start()
            return is_new

    def _renew(self) -> None:
        failed, backoff, faults = self._producer, Backoff(0.1, 10.0), RoundFaults("Kafka's producer is not renewed")
        while self._producer is failed and not self._closed.is_set():
            try:
                self._producer = open_producer(self._options)
                self._made_at = time.monotonic()
            except Exception as error:  # Kafka does not answer, or no thread can be made
                faults.note(error)
                self._closed.wait(backoff.next_wait())
        for topic in self._topics:
            with suppress(KafkaError):
                self._producer.partitions_for(topic)
        _end(failed, 1.0)
        with self._changed:
            self._renewing = None
            self._changed.notify_all()

    def fetch_partitions(self, topic: str) -> None:
        """Fetch the topic's partitions now, since kafka-python would otherwise wait for them at the first record.
        Raises ``EnvironmentFault``."""
        with translate_errors():
            self._producer.partitions_for(topic)
        self._topics.add(topic)

    def close(self, timeout_s: float = 10.0) -> None:
        """Flush within the time-out and end; remaining records fail. Closing twice does nothing."""
        self._closed.set()
        with self._changed:
            renewing = self._renewing
        if renewing is not None:
            join(renewing, timeout_s)
        _end(self._producer, timeout_s)
        for settle in list(self._open.values()):
            settle(FailureReason.STOPPED, "the producer was closed before Kafka answered")


def _end(producer: KafkaProducer, timeout_s: float) -> None:
    try:
        producer.close(timeout=timeout_s)
    except KafkaError:
        # kafka-python gives up at the flush, and leaves its thread running and its futures open.
        sender = producer._sender
        sender.force_close()
        sender.join(timeout_s)
        with suppress(KafkaError):
            producer.close(timeout=1.0)
    # A send that waits for a topic's partitions would wait for the whole of max_block_ms: nobody fetches them any more.
    metadata, closed = producer._metadata, IllegalStateError("The producer was closed.")
    metadata.request_update = lambda: Future().failure(closed)
    metadata.failed_update(closed)


def reason_of(error: BaseException) -> FailureReason:
    """Kafka's error as a failure reason."""
    if isinstance(error, MessageSizeTooLargeError | RecordListTooLargeError):
        return FailureReason.TOO_LARGE
    # After a refused idempotent send kafka-python's errors name that one only in their text.
    refused = isinstance(error, AuthorizationError) or "AuthorizationFailed" in str(error)
    return FailureReason.REFUSED if refused else FailureReason.UNREACHABLE


def explain_refusal(error: Exception) -> EnvironmentFault | None:
    """Return the fault for an error that says that there is no such account, or what it may not do; None for every
    other one."""
    if isinstance(error, SaslAuthenticationFailedError):
        return EnvironmentFault(
            "Kafka refuses the user name or the password.",
            "Correct kafka.security.sasl_username and sasl_password, and start again.",
        )
    if not isinstance(error, AuthorizationError):
        return None
    named = str(error.args[0])[:_LONGEST_TOPIC] if error.args else "it does not say which"  # it may be a whole request
    return EnvironmentFault(
        f"Kafka refuses this account a topic or a group ({type(error).__name__}: {named}).",
        "Grant it what docs/howto/kafka.md lists.",
    )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raise every ``KafkaError`` of the block, or of the decorated function, as an ``EnvironmentFault``: one sentence
    for every fault of the cluster; addresses and secrets of the options are not in it."""
    try:
        yield
    except KafkaError as error:
        raise explain_refusal(error) or EnvironmentFault(
            f"Kafka does not answer ({type(error).__name__}).",
            "Start the broker with `reliable-channel kafka start`, or check kafka.bootstrap_servers and security.",
        ) from None
