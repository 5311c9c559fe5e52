"""Converts the events of a reliable channel to JSON, with a schema for each: one model per event class, made from
its fields.

Names are camelCase, bytes are base64, and the kinds differ in ``event``, so that a generated client knows the type.
"""

from __future__ import annotations

import base64
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.alias_generators import to_camel

from reliable_channel.channel.events import EVENT_CLASSES, ChannelEvent, to_plain
from reliable_channel.messaging.client import HealthEvent, MessageEvent

Base64Text = Annotated[str, Field(json_schema_extra={"format": "byte"})]

_MEANINGS = {
    "at": "Unix time in ms by the server's clock",
    "until": "Unix time in ms",
    "missing_since": "Unix time in ms",
    "message": "the message, in standard base64",
    "request_id": "the send, as the answer to its sender's `POST /channels/{id}/send` named it",
    "channel_id": "the channel's id as it was opened, not its handle",
    "redelivered": "whether an earlier process may have reported the same event",
}


class _Event(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


def event_to_json(event: ChannelEvent | MessageEvent | HealthEvent) -> dict[str, Any]:
    """An event as JSON: camelCase names, bytes in base64."""
    plain: dict[str, Any] = to_plain(asdict(event), lambda value: base64.b64encode(value).decode("ascii"), to_camel)
    return {"event": event.name, **plain}


def _make_event_model(kind: type[ChannelEvent]) -> type[BaseModel]:
    named: dict[str, Any] = {
        "event": (Literal[kind.name], Field(description="the kind of event")),
        "cursor": (int, Field(description="`since` of a later call", json_schema_extra={"format": "int64"})),
    }
    return create_model(kind.__name__, __base__=_Event, __doc__=_read_summary(kind), **named, **_list_fields(kind))


def _list_fields(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: (_map_type(hints[one.name]), Field(description=_MEANINGS.get(one.name))) for one in fields(kind)}


@cache
def _make_part_model(kind: type) -> type[BaseModel]:
    return create_model(kind.__name__, __base__=_Event, __doc__=_read_summary(kind), **_list_fields(kind))


def _map_type(hint: Any) -> Any:
    """The type that a field's value has in JSON."""
    if hint is bytes:
        return Base64Text
    if hint is NoneType or hint is None:
        return None
    if is_dataclass(hint):
        return _make_part_model(hint)  # type: ignore[arg-type]
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        # Pairs of one type become lists, as a JSON reader sees them.
        return list[_map_type(inner[0])]  # type: ignore[misc]
    if origin in (Union, UnionType):
        return Union[tuple(_map_type(one) for one in inner)]  # noqa: UP007
    return hint


def _read_summary(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split("\n\n")[0].split())


EventOut: Any = Annotated[
    Union[tuple(_make_event_model(kind) for kind in EVENT_CLASSES)],  # noqa: UP007
    Field(discriminator="event"),
]
"""Any event of a channel."""
