"""Defines the headers and query parameters that several calls take, with their descriptions in the OpenAPI document."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, params
from pydantic import BaseModel
from pydantic.alias_generators import to_camel
from starlette.exceptions import HTTPException

from reliable_channel.messaging.idempotency import IdempotencyKey
from reliable_channel.messaging.rest.longpoll import LongPoll
from reliable_channel.messaging.rest.models import MAX_TEXT

MAX_WAIT_MS = 30_000
_INT64 = {"format": "int64"}


def from_state(name: str) -> Any:
    """What a call acts on: this attribute of its application's state. So the routes are made once in a process, for
    all of its servers."""

    async def get(request: Request) -> Any:
        return getattr(request.app.state, name)

    return Depends(get)


Poll = Annotated[LongPoll, from_state("poll")]

Wait = Annotated[
    int,
    Query(
        ge=0,
        le=MAX_WAIT_MS,
        description="Long polling: ms to wait for a change before the answer is what there is.",
        examples=[20_000],
        json_schema_extra=_INT64,
    ),
]
Since = Annotated[
    int | None,
    Query(
        ge=0,
        description="Only what changed after this cursor, the `X-Cursor` of an earlier answer.",
        examples=[42],
        json_schema_extra=_INT64,
    ),
]
Skip = Annotated[
    int | None,
    Query(ge=0, description="Leave out so many records.", examples=[0], json_schema_extra=_INT64),
]
Take = Annotated[
    int | None,
    Query(ge=0, description="Return at most so many.", examples=[100], json_schema_extra=_INT64),
]
ContentTopicKey = Annotated[
    str | None,
    Query(
        alias="contentTopic",
        max_length=MAX_TEXT,
        description="Records of this content topic. Give this or `subscriptionId`.",
        examples=["/my-app/1/chat/proto"],
    ),
]
SubscriptionKey = Annotated[
    str | None,
    Query(
        alias="subscriptionId",
        max_length=MAX_TEXT,
        description="Records received under this subscription. Give this or `contentTopic`.",
        examples=["1692854c-cbde-4afe-901f-1c86ecbd9ea1"],
    ),
]
RequestKey = Annotated[
    str | None,
    Query(
        alias="requestId",
        max_length=MAX_TEXT,
        description="The record of this send request. Give this or `hash`.",
        examples=["7a3c2f0e-5b1d-4e0f-9c61-0d3a2b8f4e55"],
    ),
]
HashKey = Annotated[
    str | None,
    Query(
        alias="hash",
        max_length=MAX_TEXT,
        description="The record of this message hash: 64 hex digits, `0x` optional. Give this or `requestId`.",
        examples=["0x2593a9966d0629687b9daed89d977356f619437a761ca6b38514430149de1c28"],
    ),
]
IdempotencyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        description="A text of your own, new for each message. The same key gives the same answer and sends once, for "
        "24 hours and over restarts; with another message it is 409.",
        examples=["order-4711-confirmation"],
    ),
]


def idempotency_key(scope: str, key: str | None, body: BaseModel) -> IdempotencyKey | None:
    """The idempotency key of a call whose message is ``body``; None when the caller sent none."""
    if key is None:
        return None
    given = {name: value.hex() if isinstance(value, bytes) else value for name, value in dict(body).items()}
    canonical = json.dumps(given, sort_keys=True).encode()
    return IdempotencyKey(scope, key, hashlib.sha256(canonical).digest())


def make_router(tag: str, *dependencies: params.Depends, prefix: str = "") -> APIRouter:
    """A router for calls that belong to ``tag`` and refuse what :func:`check_query` does."""
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        dependencies=[Depends(check_query), *dependencies],
        generate_unique_id_function=lambda route: to_camel(route.name),  # the method's name in a generated client
    )


async def check_query(request: Request) -> None:
    """Refuse a known parameter that is repeated or differs in case only, because it would be ignored silently."""
    fields: list[Any] = request.scope["route"].dependant.query_params
    names = {field.alias.lower(): field.alias for field in fields}
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        meant = names.get(name.lower())
        if meant is None:
            continue
        if name != meant:
            raise HTTPException(400, f"{name[:100]}: unknown parameter, it is written {meant}")
        if name in seen:
            raise HTTPException(400, f"{name}: given more than once")
        seen.add(name)
