"""Defines the events that a channel reports to its application, one frozen class per event of RELIABLE-CHANNEL-API.

``name`` is the event's name in the current revision, ``aliases`` its names in the other revisions. Times are ms (``at``
is the channel's clock), ids are text. A *chunk* of the documents is a segment; ``chunk_info`` counts data segments
first, then parity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from reliable_channel.core.segmentation import MessageChunk


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """Which segment of how many; (0, 1) for a message that is not segmented."""

    chunk_index: int
    total_chunks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelEvent:
    """Base of all events."""

    name: ClassVar[str] = ""
    aliases: ClassVar[tuple[str, ...]] = ()
    channel_id: str
    at: int

    def as_dict(self) -> dict[str, Any]:
        """Plain values under the field names, with the event's name; bytes as hex. For logs and ``--json``."""
        fields: dict[str, Any] = to_plain(asdict(self), bytes.hex, str)
        return {"event": self.name, **fields}


def to_plain(value: Any, write_bytes: Callable[[bytes], str], rename: Callable[[str], str]) -> Any:
    """A value of dictionaries, lists and scalars as JSON has it: bytes as text, keys renamed."""
    if isinstance(value, bytes):
        return write_bytes(value)
    if isinstance(value, (list, tuple)):
        return [to_plain(item, write_bytes, rename) for item in value]
    if isinstance(value, dict):
        return {rename(key): to_plain(item, write_bytes, rename) for key, item in value.items()}
    return value


# ---- whole messages (current revision) ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageReceived(ChannelEvent):
    """A complete message of another participant. ``request_id`` is the SDS id of its first segment, which is what
    ``send`` returned to a sender of this project; ``None`` if that segment did not arrive, and for an ephemeral
    message. ``message_id`` is the logical id, hex Keccak-256 of the payload; ``sequence`` the running number of
    messages handed to this application on this channel, kept over restarts (0 for an ephemeral one).
    ``lamport_timestamp`` and ``sds_id`` are those of the segment that completed the message, absent for an ephemeral
    one.

    Reported once. ``redelivered``: the previous process ended before it recorded that it had reported this message, so
    the message may have been reported already, under the same ``sequence``."""

    name = "reliable:message:received"
    aliases = ("message-received",)
    message: bytes
    message_id: str
    sender_id: str
    content_topic: str
    sequence: int
    request_id: str | None = None
    ephemeral: bool = False
    sds_id: str = ""
    lamport_timestamp: int | None = None
    late: bool = False
    lost_dependencies: tuple[str, ...] = ()
    chunks: tuple[MessageChunk, ...] = ()
    redelivered: bool = False

    @property
    def payload(self) -> bytes:
        """The same bytes as ``message``, by the name the March 2026 revision gives them."""
        return self.message


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageLost(ChannelEvent):
    """A message of another participant was given up: some of its segments arrived, and the others cannot be had.
    Further segments of it are not acknowledged, so its sender learns of it unless others acknowledge them.

    ``message_id`` is the logical id, hex Keccak-256 of the payload. ``held`` and ``missing`` are segment numbers, data
    first, then parity; ``missing`` names data segments, and is empty while ``data_count`` is unknown. ``lacking``: how
    many more segments, data or parity, were needed. ``held_bytes`` were dropped; ``first_seen`` and ``last_seen`` (ms)
    are the times of the first and the last segment. ``reason``: ``expired`` (``max_set_lifetime_ms`` passed),
    ``hash_mismatch`` (false segments are among those held), ``over_message_limit`` (over ``max_message_bytes``),
    ``unverified_chain``, or, if it was asked for again in vain, the bound that evicted it: ``buffered_bytes``,
    ``buffered_bytes_per_sender``, ``open_sets``, ``open_sets_per_sender``, ``open_sends_of_one_payload``.

    Reported at least once, over restarts too. ``redelivered``: as in :class:`MessageReceived`."""

    name = "reliable:message:lost"
    aliases = ("message-lost",)
    message_id: str
    sender_id: str
    reason: str
    held: tuple[int, ...]
    missing: tuple[int, ...]
    data_count: int | None
    parity_count: int | None
    lacking: int | None
    held_bytes: int
    sds_ids: tuple[str, ...]
    first_seen: int
    last_seen: int
    redelivered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SendEvent(ChannelEvent):
    """Base of the events about a whole send. ``redelivered``: as in :class:`MessageReceived`."""

    request_id: str
    message_id: str
    redelivered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSent(SendEvent):
    """All segments of a send are dispatched, or enough are acknowledged to make it delivered. ``request_ids`` are the
    node's, under the labels ``<request_id>:1`` to ``<request_id>:N``: those of this process."""

    name = "reliable:message:sent"
    request_ids: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelivered(SendEvent):
    """A send is acknowledged end to end: all its segments, or with parity any k of the k + m, each by at least one
    participant. A participant acknowledges what it has stored; docs/channel.md says what that proves."""

    name = "reliable:message:delivered"
    after_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSendError(SendEvent):
    """A send failed before all its segments were dispatched: the node or the bridge refused one, every attempt failed,
    or the hook could not encrypt it. ``dispatched``: all its segments were dispatched and too few were acknowledged,
    which is reported here only without ``delivery_error_event``."""

    name = "reliable:message:send-error"
    aliases = ("sending-message-irrecoverable-error",)
    error: str
    dispatched: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDeliveryError(SendEvent):
    """All segments of a send were dispatched, and too few were acknowledged until the retransmissions were exhausted
    (LIP-173). The message may have been received all the same."""

    name = "reliable:message:delivery-error"
    error: str


# ---- segments (first revision) ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEvent(ChannelEvent):
    """Base of the events about one segment of an own send."""

    request_id: str
    message_id: str
    sds_id: str
    chunk_info: ChunkInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingMessage(SegmentEvent):
    """A segment is handed to the node; again at every retransmission (``attempt`` 0 is the first)."""

    name = "sending-message"
    node_request_id: str
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentQueued(SegmentEvent):
    """Kafka has the segment, and no bridge has reported on it yet: the state is *queued*."""

    name = "message-queued"
    node_request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSent(SegmentEvent):
    """A Waku node accepted the segment; not acknowledged yet. ``message_hash`` is that of the envelope as it went
    out."""

    name = "message-sent"
    node_request_id: str
    message_hash: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePossiblyAcknowledged(SegmentEvent):
    """A filter of another participant holds the segment; ``count`` different messages did so far."""

    name = "message-possibly-acknowledged"
    by: str
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAcknowledged(SegmentEvent):
    """A segment is acknowledged; ``chunks_acknowledged`` are all indices that are, so far."""

    name = "message-acknowledged"
    chunks_acknowledged: tuple[int, ...]
    total_chunks: int
    evidence: str


# ---- the rest ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class IrretrievableMessage(ChannelEvent):
    """A message that others refer to is declared lost: no store had it in time. ``sds_id`` names the lost segment."""

    name = "irretrievable-message"
    aliases = ("message-irretrievable",)
    sds_id: str
    sender_id: str | None
    missing_since: int
    refetches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EphemeralMessageDropped(ChannelEvent):
    """An ephemeral message was not sent: the rate limit is nearly used up."""

    name = "ephemeral-message-dropped"
    message_id: str
    utilization: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimitApproached(ChannelEvent):
    """Nearly all envelopes of this epoch are used; the next begins at ``until`` (ms)."""

    name = "rate-limit-approached"
    used: int
    limit: int
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelayed(ChannelEvent):
    """The rate limit holds a send back until ``until`` (ms) or later."""

    name = "message-delayed"
    request_id: str
    message_id: str
    until: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingMessage(ChannelEvent):
    """Another participant refers to a segment that is not here; it will be asked for."""

    name = "missing-message"
    sds_id: str
    sender_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelProblem(ChannelEvent):
    """Something was refused or is in the way, and the channel continues. ``kind``: ``undecryptable``,
    ``plaintext_refused``, ``encryption_failed``, ``malformed``, ``lookalike`` (delivered all the same, but probably
    meant as a segment), ``refused``, ``conflict``, ``hash_mismatch``, ``unverified_chain``, ``saturated_filter``,
    ``evicted``, ``set_evicted`` (an incomplete message made room and is asked for again when there is some),
    ``slow_rate_limit`` (what waits takes several epochs), ``dispatch_failed``, ``store_failed``, ``long_absence``
    (stores are not asked for all of the time since the last envelope), ``records_gone`` (Kafka no longer has records
    that were not read yet), ``input_failed`` (a fault of this program; the channel continues as before the input),
    ``shared_sender_id`` (another device sends under this sender id; reported once). ``detail`` never holds payload
    bytes or keys."""

    name = "channel-problem"
    kind: str
    detail: str
    sds_id: str = ""


EVENT_CLASSES: tuple[type[ChannelEvent], ...] = tuple(
    kind for kind in vars().values() if isinstance(kind, type) and issubclass(kind, ChannelEvent) and kind.name
)
"""Those above that have a name, which are reported."""


def cheap_kind(event: ChannelEvent) -> str | None:
    """The kind of an event that strangers cause in any number with few envelopes, so that whoever keeps events keeps
    few of it; ``None`` for other events."""
    if isinstance(event, ChannelProblem):
        return event.kind
    # One envelope names a thousand ids that never existed.
    return event.name if isinstance(event, MissingMessage | IrretrievableMessage) else None
