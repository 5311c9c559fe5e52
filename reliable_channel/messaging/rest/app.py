"""Builds the FastAPI application of one node: guard, errors, routes, OpenAPI document."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool

from reliable_channel import __version__
from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.messaging.client import MessagingClient
from reliable_channel.messaging.node import MessagingNode
from reliable_channel.messaging.rest import errors
from reliable_channel.messaging.rest.body_guard import BodyGuard
from reliable_channel.messaging.rest.channels import CHANNEL_ROUTES, ChannelSessions
from reliable_channel.messaging.rest.longpoll import LongPoll
from reliable_channel.messaging.rest.messaging_v1 import V1_ROUTES, MessagingEvents
from reliable_channel.messaging.rest.routes import MAX_HISTORIES, ROUTES
from reliable_channel.transport.clock import Clock, SystemClock
from reliable_channel.transport.http.guard import AccessGuard, AccessRules
from reliable_channel.transport.http.guard import allowed_hosts as host_names

MAX_WAITING = 64
"""The number of long polls and streams that may wait at once; a further one is answered 429."""
DEFAULT_MAX_BODY_BYTES = 2 * 1024 * 1024
"""A message of 1 MiB for a reliable channel, in base64."""


def create_app(
    node: MessagingNode,
    *,
    token: str | None = None,
    allowed_hosts: Sequence[str] = (),
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    channels: Callable[[str], ReliableChannelConfig] | None = None,
    clock: Clock | None = None,
    threaded: bool = True,
    run_node: bool = True,
) -> FastAPI:
    """The application. With ``run_node`` the node starts and stops with it (it is not closed). ``channels`` gives the
    configuration of a reliable channel on a content topic; None leaves their paths out. ``clock``, and
    their ``threaded=False``, are for tests; ``app.state.sessions`` then has ``step()``."""
    poll = LongPoll(node.events, MAX_WAITING)
    sessions = None if channels is None else ChannelSessions(node, channels, poll, clock=clock, threaded=threaded)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        poll.start()
        try:
            if run_node:
                await run_in_threadpool(node.start)
            yield
        finally:
            poll.stop()
            if sessions is not None:
                await run_in_threadpool(sessions.close_all)
            if run_node:
                await run_in_threadpool(node.stop)

    app = FastAPI(
        title="Messaging API",
        version=__version__,
        description="Send, receive and track Waku messages; reliable channels.",
        lifespan=lifespan,
        docs_url=None,  # the page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # a redirect has no body, and names the address that the client did not use
    )
    errors.install(app)
    # The one added last is asked first: a caller without access has no body read.
    app.add_middleware(BodyGuard, max_bytes=max_body_bytes)
    rules = AccessRules(host_names(allowed_hosts), "api.allowed_hosts", token, refusal=errors.refusal)
    app.add_middleware(AccessGuard, rules=rules)
    client = MessagingClient(node)
    app.state.node = node
    app.state.poll = poll
    app.state.histories = threading.BoundedSemaphore(MAX_HISTORIES)
    app.state.client = client
    app.state.client_events = MessagingEvents(client, poll, clock or SystemClock())
    app.state.sessions = sessions
    for router in (ROUTES, V1_ROUTES, *([] if sessions is None else [CHANNEL_ROUTES])):
        app.router.routes += router.routes  # include_router() would examine all parameters again
    app.openapi = lambda: _make_document(app, token is not None)  # type: ignore[method-assign]
    return app


def _make_document(app: FastAPI, secured: bool) -> dict[str, Any]:
    """The OpenAPI document with the server's real status: invalid input is 400 here, not FastAPI's 422."""
    if app.openapi_schema is None:
        document = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        for path in document["paths"].values():
            for call in path.values():
                call["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        if secured:
            document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
            document["security"] = [{"bearer": []}]
        app.openapi_schema = document
    return app.openapi_schema
