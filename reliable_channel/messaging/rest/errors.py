"""Converts errors into status codes and ``{"error": …}`` bodies of one sentence, without a stack trace."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from reliable_channel.channel.errors import ChannelClosedError, ChannelExistsError, ChannelNotStartedError
from reliable_channel.core.errors import EnvironmentFault, LocalError, MessageTooLarge, ReliableChannelError
from reliable_channel.messaging.config import UnsupportedTopicError
from reliable_channel.messaging.idempotency import KeyReusedError
from reliable_channel.messaging.rest.models import Error
from reliable_channel.messaging.subscriptions import SubscriptionLimitError
from reliable_channel.transport.base import SendBufferFull

_log = logging.getLogger(__name__)


_MEANINGS = {
    400: "The request is not what is documented.",
    401: "The bearer token is missing or wrong.",
    403: "This host name is not served, or a page of another site asks.",
    404: "Nothing matches, or the topic is not supported.",
    405: "This path has other methods.",
    408: "The body did not arrive in time.",
    409: "What is named is in another state.",
    413: "The body or the message is too large.",
    415: "The body is not application/json.",
    429: "Too many at once; try again later.",
    500: "A fault of the server, in its log.",
    503: "Something the server needs does not answer.",
}
# The first class that fits counts, so those that are derived from others come before them.
_STATUS: tuple[tuple[type[ReliableChannelError], int], ...] = (
    (UnsupportedTopicError, 404),
    (MessageTooLarge, 413),
    (ChannelExistsError, 409),
    (KeyReusedError, 409),
    (ChannelClosedError, 409),
    (ChannelNotStartedError, 409),
    (SendBufferFull, 429),
    (SubscriptionLimitError, 429),
    (LocalError, 400),
    (EnvironmentFault, 503),
    (ReliableChannelError, 500),
)


_HTTP_WORDS = {
    "Not Found": "There is no such path; see /openapi.json.",
    "Method Not Allowed": "This path has other methods; see the header Allow.",
    "There was an error parsing the body": "The body cannot be read: send JSON in UTF-8, not compressed and not deeply"
    " nested.",
}
"""Full sentences in place of the framework's short texts."""


def document_errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI entries of error answers, including those that any call may return."""
    return {
        code: {"model": Error, "description": _MEANINGS[code]} for code in sorted({*codes, 400, 401, 403, 500, 503})
    }


def error_response(status: int, text: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """``{"error": text}``."""
    return JSONResponse({"error": text}, status, headers)


def refusal(status: int, reason: str) -> tuple[str, bytes]:
    """The content type and body of an answer sent without a handler."""
    return "application/json", bytes(error_response(status, reason).body)


def make_not_found(text: str) -> HTTPException:
    """A 404 with the specified sentence."""
    return HTTPException(404, text)


def install(app: FastAPI) -> None:
    """Register the answer for every kind of fault."""

    @app.exception_handler(HTTPException)
    async def _http(request: Request, error: HTTPException) -> JSONResponse:
        detail = str(error.detail)
        return error_response(error.status_code, _HTTP_WORDS.get(detail, detail), error.headers)

    @app.exception_handler(RequestValidationError)
    async def _invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        sentences = "; ".join(_sentence(item) for item in error.errors())[:1_000]
        return error_response(413 if any(map(_too_large, error.errors())) else 400, sentences)

    @app.exception_handler(ReliableChannelError)
    async def _ours(request: Request, error: ReliableChannelError) -> JSONResponse:
        status = next(status for kind, status in _STATUS if isinstance(error, kind))
        headers = {"Retry-After": "1"} if status in (429, 503) else None
        return error_response(status, error.cause if status == 404 else str(error), headers)

    @app.exception_handler(Exception)
    async def _unforeseen(request: Request, error: Exception) -> JSONResponse:
        _log.exception("%s %s failed", request.method, request.url.path)
        return error_response(500, "Internal error.")


def _too_large(item: Any) -> bool:
    """Whether the fault is the size of a payload."""
    return bool(item["type"] == "string_too_long" and item["loc"][-1] == "payload")


def _sentence(item: Any) -> str:
    if item["type"] == "json_invalid":
        return f"The body is not JSON: {item['ctx']['error']}, at character {item['loc'][-1]}."
    where = ".".join(str(part) for part in item["loc"] if part not in ("body", "query", "header", "path"))
    return f"{where or 'body'}: {item['msg'].removeprefix('Value error, ')}"
