"""Defines the node port: the protocol through which the reliable channel uses a node.

Transports implement it, and so does the Messaging API on top of them. Calls never wait for the network (except
``query_store`` and a full buffer in ``send``); results arrive later as events. The reliable channel starts SDS time at
:class:`Sent`, retransmits by a new ``send``, and leaves every other retry to the node: one retry layer per fault.

::

    channel ──send(message)──► RequestId          node ──► Queued, SendDelayed (perhaps, on the way)
                                                       ──► Sent | SendFailed   (exactly one per RequestId)
            ──subscribe(content topics)──►              ──► Received           (after de-duplication by message hash)
            ──query_store(query)──► StorePage           ──► HealthChanged      (once per change)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, NewType, Protocol, runtime_checkable

from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.core.rate_limit import RateLimitConfig, Traffic
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, message_hash
from reliable_channel.transport.health import Health
from reliable_channel.transport.store.model import StoreEntry, StorePage, StoreQuery
from reliable_channel.transport.unstored import Hold

if TYPE_CHECKING:
    from reliable_channel.transport.dispatch_limit import Count

RequestId = NewType("RequestId", str)
"""One ``send``: a GUID as text (RELIABLE-CHANNEL-API, labels ``id:1 … id:N`` of a ReliableSendId)."""


class Source(StrEnum):
    """How an envelope reached us: the Kafka header ``source`` (14/WAKU2-MESSAGE)."""

    RELAY = "relay"
    FILTER = "filter"
    STORE = "store"
    REPAIR = "repair"
    SENDER = "sender"


@dataclass(frozen=True, slots=True)
class ReceivedEnvelope:
    """An envelope as it arrived. ``source=sender`` marks a copy of an envelope that this or another participant on the
    same Kafka topic dispatched. ``hold``: what a listener takes that stores the envelope only later; ``None`` where the
    node has no offsets."""

    message: WakuMessage
    pubsub_topic: str
    message_hash: bytes
    source: Source
    hold: Hold | None = field(default=None, compare=False, repr=False)


class FailureReason(StrEnum):
    """Why a send failed, from the answer of the node or the broker."""

    REFUSED = "refused"
    """The node rejects the message as invalid, or does not serve its topic: the same bytes fail again. Or the request
    was cancelled."""
    TOO_LARGE = "too_large"
    RATE_LIMITED = "rate_limited"
    NO_PEERS = "no_peers"
    """The node answers, but has no peer to send to."""
    UNREACHABLE = "unreachable"
    """No answer, or a fault of the node: the message may or may not have been sent."""
    DUPLICATE = "duplicate"
    """The network reports that it has this envelope already: after an ``unreachable`` of the same envelope, a
    success."""
    STOPPED = "stopped"
    """The transport was stopped before the message was dispatched."""
    DROPPED = "dropped"
    """An ephemeral message that the rate limit had no room for."""


RETRIABLE = frozenset({FailureReason.RATE_LIMITED, FailureReason.NO_PEERS, FailureReason.UNREACHABLE})
"""Failures after which the same message may succeed later."""


@dataclass(frozen=True, slots=True)
class Queued:
    """Kafka has the envelope (``acks=all``), and no bridge has reported on it yet. Only transports over Kafka have this
    state; :class:`Sent` or :class:`SendFailed` follows when a bridge takes the envelope."""

    request_id: RequestId
    at_ms: int


@dataclass(frozen=True, slots=True)
class SendDelayed:
    """The rate limit of the membership holds the envelope back until ``until_ms`` (Unix ms) or later."""

    request_id: RequestId
    until_ms: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class RateLimitNear:
    """``used`` of the ``limit`` envelopes of this epoch are used; the next epoch begins at ``until_ms`` (Unix ms)."""

    used: int
    limit: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class Sent:
    """A Waku node accepted the envelope.

    ``message`` is the envelope as dispatched, its timestamp included; ``message_hash`` is its key in every store and
    the ``retrieval_hint`` of SDS."""

    request_id: RequestId
    message: WakuMessage
    pubsub_topic: str
    message_hash: bytes
    at_ms: int


@dataclass(frozen=True, slots=True)
class SendFailed:
    """The envelope was not sent, after the node's own retries. ``detail`` is bounded and holds no payload.

    ``message_hash`` names the envelope of the last attempt, ``None`` when there was none: after ``unreachable`` it may
    be on the network nevertheless. ``utilization``: for ``dropped``, the share of the rate limit that was used."""

    request_id: RequestId
    reason: FailureReason
    detail: str
    at_ms: int
    message_hash: bytes | None = None
    utilization: float = 0.0

    @property
    def retriable(self) -> bool:
        """Whether the same message may succeed later."""
        return self.reason in RETRIABLE


@dataclass(frozen=True, slots=True)
class Received:
    """An envelope on a subscribed content topic."""

    envelope: ReceivedEnvelope


@dataclass(frozen=True, slots=True)
class HealthChanged:
    """The node's health state has changed."""

    health: Health


@dataclass(frozen=True, slots=True)
class RecordsGone:
    """Records that were not read yet are no longer in Kafka: the offsets from ``first`` up to, but without, ``next`` of
    one partition, or an unknown number of them if both are equal, because the topic was created anew. The reader
    continues at the earliest record that is kept."""

    topic: str
    partition: int
    first: int
    next: int
    reason: str

    def __str__(self) -> str:
        gone = f"offsets {self.first} to {self.next - 1}" if self.next > self.first else "an unknown number of records"
        return f"{gone} of {self.topic}, partition {self.partition}: {self.reason}"


NodeEvent = Queued | SendDelayed | RateLimitNear | Sent | SendFailed | Received | HealthChanged | RecordsGone
Listener = Callable[[NodeEvent], None]


class NodeStoppedError(LocalError):
    """A call that needs a started node."""


class SendBufferFull(EnvironmentFault):
    """Back-pressure: the bounded buffer of outgoing envelopes stayed full for the whole time-out."""


class StoreUnavailable(EnvironmentFault):
    """No store node returned a page: none configured, none reachable, or all failed; the cause names each."""


@runtime_checkable
class Node(Protocol):
    """The port. Every method may be called from any thread; listeners run one at a time, on one thread of the node (the
    memory transport: on the thread that pumps its network), and must not block for long. An exception of a listener is
    logged and does not affect the others. After ``stop`` has returned, no listener is called and no thread is left."""

    def start(self) -> None:
        """Start sending and receiving. Starting a started node does nothing."""

    def stop(self) -> None:
        """Flush accepted envelopes (bounded by the transport's time-out; the rest fails as ``stopped``), end all
        threads. Stopping twice does nothing; a stopped node can be started again."""

    def send(
        self,
        message: WakuMessage,
        pubsub_topic: str | None = None,
        *,
        max_wait_s: float | None = None,
        traffic: Traffic = Traffic.FIRST_SEGMENT,
    ) -> RequestId:
        """Dispatch one envelope, without waiting for the network; :class:`Sent` or :class:`SendFailed` follows, once.
        ``traffic`` decides its priority when a rate limit delays envelopes.

        A ``timestamp`` of ``None`` is the normal case: the node sets it at the moment of dispatch, fresh and unique
        (14/WAKU2-MESSAGE). ``pubsub_topic=None`` uses the result of ``pubsub_topic_for``. ``max_wait_s``: how long to
        wait for room in a full buffer; ``None`` leaves it to the node, 0 never waits. Raises ``MessageTooLarge``,
        :class:`NodeStoppedError`, and :class:`SendBufferFull` when the buffer stays full."""

    def withdraw(self, request_id: RequestId) -> bool:
        """Take back a send that waits here: behind others, for the rate limit or for another attempt. Returns whether
        it did; no event follows then. A node that does not dispatch itself cannot, and returns ``False``."""

    def limit_rate(self, config: RateLimitConfig, count: Count | None = None) -> None:
        """Dispatch within this rate limit, with its count stored in ``count``; the default configuration sets no limit.
        A node that does not dispatch itself leaves the limit to the dispatcher. Raises ``ConfigurationError`` when the
        node already has another limit, because a membership has only one."""

    def subscribe(self, content_topics: Collection[str]) -> None:
        """Subscribe to these content topics as well; repeats change nothing."""

    def unsubscribe(self, content_topics: Collection[str]) -> None:
        """Unsubscribe. Topics not subscribed are ignored."""

    def query_store(self, query: StoreQuery) -> StorePage:
        """One page from a store, waiting for it. Raises :class:`StoreUnavailable`."""

    def health(self) -> Health:
        """The last known health, without asking the network."""

    def pubsub_topic_for(self, content_topic: str) -> str:
        """The pubsub topic that this node uses for this content topic."""

    def add_listener(self, listener: Listener) -> None:
        """Call ``listener`` with every later event, after the listeners added before it."""

    def remove_listener(self, listener: Listener) -> None:
        """Remove a listener. Unknown listeners are ignored."""


def hash_candidates(pubsub_topic: str, message: WakuMessage) -> tuple[bytes, ...]:
    """The message hashes that nodes may use for this envelope, the specified one first.

    go-waku hashes eight zero bytes for an absent timestamp (14/WAKU2-MESSAGE, docs/spec/waku-rest.md)."""
    specified = message_hash(pubsub_topic, message)
    if message.timestamp is not None:
        return (specified,)
    zero = WakuMessage(message.payload, message.content_topic, meta=message.meta, timestamp=0)
    return (specified, message_hash(pubsub_topic, zero))


def list_hashes(entry: StoreEntry) -> list[bytes]:
    """The hashes under which the envelope of a store's entry may be known, the node's own first: that of every
    :func:`hash_candidates`, also with the ``meta`` of reliable channels, which Store v1 leaves out."""
    if entry.message is None or entry.pubsub_topic is None:
        return [entry.message_hash]
    messages = [entry.message]
    if not entry.verified:
        messages.append(replace(entry.message, meta=RELIABLE_CHANNEL_META))
    hashes = [hash_ for message in messages for hash_ in hash_candidates(entry.pubsub_topic, message)]
    return [*dict.fromkeys([entry.message_hash, *hashes])]
