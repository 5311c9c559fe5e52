"""Defines and validates the JSON of the REST API in the specified camelCase names. An invalid body becomes a 400 with
one sentence."""

from __future__ import annotations

import base64
import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StrictBool,
    StrictInt,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from reliable_channel.messaging.client import ConnectionStatus
from reliable_channel.messaging.records import MessageRecord
from reliable_channel.transport.health import HealthState

_SIGN = "[A-Za-z0-9+/]"
BASE64 = f"^(?:{_SIGN}{{4}})*(?:{_SIGN}{{2}}==|{_SIGN}{{3}}=|{_SIGN}{{4}})$"
META = (
    f"^(?:(?:{_SIGN}{{4}}){{0,20}}(?:{_SIGN}{{2}}==|{_SIGN}{{3}}=|{_SIGN}{{4}})?|(?:{_SIGN}{{4}}){{21}}{_SIGN}{{2}}==)$"
)
"""Base64 of at most 64 bytes (14/WAKU2-MESSAGE)."""

MAX_PAYLOAD_CHARACTERS = 200_000
"""The 150 000 bytes that the network allows an envelope, in base64."""
MAX_TEXT = 1_024


def _check_text(value: str) -> str:
    """Refuse half a surrogate pair, which JSON can contain and UTF-8 cannot."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("not valid Unicode") from None
    return value


def _decode_base64(value: str) -> bytes:
    return base64.b64decode(value, validate=True)


Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TEXT), AfterValidator(_check_text)]
Identifier = Annotated[str, StringConstraints(max_length=MAX_TEXT), AfterValidator(_check_text)]
# Their values are bytes: pydantic checks the base64 text, and a validator decodes it then.
Payload = Annotated[
    str,
    StringConstraints(pattern=BASE64, max_length=MAX_PAYLOAD_CHARACTERS),
    AfterValidator(_decode_base64),
]
MAX_CHANNEL_CHARACTERS = 1_398_104
"""A message of 1 MiB in base64."""

ChannelPayload = Annotated[
    str,
    StringConstraints(pattern=BASE64, max_length=MAX_CHANNEL_CHARACTERS),
    AfterValidator(_decode_base64),
]
Meta = Annotated[
    str,
    StringConstraints(pattern=META),
    AfterValidator(_decode_base64),
]


def _read_whole_number(value: object) -> object:
    """JavaScript's numbers cannot hold Unix ns, so a text of digits is taken as well."""
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    return value


_DIGITS = re.compile(r"-?[0-9]{1,19}")
Nanoseconds = Annotated[
    StrictInt,
    BeforeValidator(_read_whole_number),
    Field(ge=-(2**63), lt=2**63),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer", "format": "int64"}, {"type": "string", "pattern": "^-?[0-9]{1,19}$"}],
            "description": "Unix time in ns, as a number or as a text of digits",
            "examples": [1795254432521844140],
        }
    ),
]
Base64Out = Annotated[bytes, PlainSerializer(lambda value: base64.b64encode(value).decode("ascii"), return_type=str)]


class Wire(BaseModel):
    """Camel case outside, snake case inside; unknown fields are refused by name."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class SendRequest(Wire):
    """``POST /send``. ``timestamp`` 0 counts as omitted; without ``pubsubTopic`` the node's own is taken."""

    payload: Payload
    content_topic: Text
    pubsub_topic: Text | None = None
    meta: Meta | None = None
    timestamp: Nanoseconds | None = None
    ephemeral: StrictBool | None = None


class RequestIdentifier(Wire):
    """The body of ``/send/cancel`` and ``/send/retry``, and the answer of ``/send``."""

    request_id: Identifier


class SubscribeRequest(Wire):
    """``POST /subscribe``. Without ``pubsubTopic`` the node's own is taken."""

    content_topic: Text
    pubsub_topic: Text | None = None


class SubscriptionIdentifier(Wire):
    """The body of ``/unsubscribe``, and the answer of ``/subscribe``."""

    subscription_id: Identifier


class HistoryRequest(Wire):
    """``POST /history``: a store query whose answers become records. Both ends are included."""

    content_topics: Annotated[list[Text], Field(min_length=1, max_length=100)]
    start_time: Nanoseconds | None = None
    end_time: Nanoseconds | None = None
    pubsub_topic: Text | None = None
    limit: Annotated[StrictInt, Field(ge=0, le=10_000)] = 1_000


class Status(Wire):
    """The answer of calls without a result."""

    status: str = "ok"


class HealthAnswer(Wire):
    """``GET /health``. ``connectionStatus`` is what clients of logos-delivery wait for."""

    status: HealthState
    connection_status: ConnectionStatus


class Error(Wire):
    """Every answer that is not a success."""

    error: str


class MessageOut(Wire):
    """``message`` of a record; ``hash`` (``0x`` and 64 hex digits) and ``pubsubTopic`` are additions to the API
    document."""

    payload: Base64Out
    content_topic: str
    pubsub_topic: str
    hash: str
    meta: Base64Out | None = None
    version: int | None = Field(default=None, json_schema_extra={"format": "int64"})
    timestamp: int | None = Field(
        default=None, description="Unix time in ns by the sender's clock", json_schema_extra={"format": "int64"}
    )
    timestamp_text: str | None = Field(
        default=None, description="`timestamp` as a text, for languages whose numbers cannot hold it"
    )
    ephemeral: bool | None = None


class RecordOut(Wire):
    """``MessageRecord``; absent fields are left out."""

    sending: bool
    queued: bool | None = Field(
        default=None, description="true while it waits in Kafka for a bridge, or for the rate limit; left out otherwise"
    )
    sent: bool
    stored: bool
    received: bool
    request_id: str | None = None
    message: MessageOut
    error: str | None = None


def record_to_json(record: MessageRecord) -> dict[str, Any]:
    """A record as the specified JSON."""
    message = record.message
    shown = RecordOut(
        sending=record.sending,
        queued=record.queued or None,
        sent=record.sent,
        stored=record.stored,
        received=record.received,
        request_id=record.request_id,
        error=record.error,
        message=MessageOut(
            payload=message.payload,
            content_topic=message.content_topic,
            pubsub_topic=record.pubsub_topic,
            hash=record.hash_hex,
            meta=message.meta,
            version=message.version,
            timestamp=message.timestamp,
            timestamp_text=None if message.timestamp is None else str(message.timestamp),
            ephemeral=message.ephemeral,
        ),
    )
    return shown.model_dump(mode="json", by_alias=True, exclude_none=True)
