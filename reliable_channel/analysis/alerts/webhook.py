"""Sends changes to a webhook: JSON by POST, at least once, retried with growing pauses.

Ids that strangers choose appear only as JSON strings in the body. URL and token are secrets: errors name neither, and
redirects are not followed, because they would send both to another host.
"""

from __future__ import annotations

import datetime as dt
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from reliable_channel import __version__
from reliable_channel.config.model import AlertSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.backoff import make_retrying
from reliable_channel.transport.http.client import read_retry_after
from reliable_channel.transport.http.deadline import deadline, open_client

PAGE = 100
"""Changes in one request."""
_TEMPORARY = {408, 425, 429}
"""Too slow, too early, too many: of all others below 500 a repetition would get the same answer."""
_LONGEST_PAUSE_S = 15.0
"""A receiver that asks for a longer one is left to the next run: rounds of verdicts wait for this one."""


class _AgainError(Exception):
    """The receiver is busy or unreachable; a retry may succeed after ``retry_after_s``."""

    def __init__(self, what: str, retry_after_s: float = 0.0) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Webhook:
    """Where and how to send. ``sleep`` waits between attempts; tests do not wait."""

    settings: AlertSettings
    sleep: Callable[[float], None] = time.sleep
    transport: httpx.BaseTransport | None = None

    def send(self, changes: Sequence[dict[str, Any]]) -> None:
        """Send rows of ``alerts`` in one request. Raises ``EnvironmentFault`` when the receiver did not accept them."""
        if self.settings.webhook_url is None:
            return
        try:
            url = httpx.URL(self.settings.webhook_url.get_secret_value())
        except httpx.InvalidURL:
            raise EnvironmentFault(
                "The webhook's URL is invalid.", "Set RELIABLE_CHANNEL__ALERTS__WEBHOOK_URL."
            ) from None
        body = json.dumps({"version": 1, "alerts": [_to_json(row) for row in changes]}, ensure_ascii=True).encode()
        attempt = make_retrying(
            self.settings.webhook_attempts,
            0.5,
            _LONGEST_PAUSE_S,
            retry_if=lambda error: isinstance(error, _AgainError) and error.retry_after_s <= _LONGEST_PAUSE_S,
            sleep=self.sleep,
        )
        with open_client(url, timeout=self.settings.webhook_timeout_ms / 1000, transport=self.transport) as client:
            try:
                attempt(self._post, client, url, body)
            except _AgainError as error:
                raise EnvironmentFault(
                    f"The webhook did not take the alerts ({error}).", "They are sent again by the next run."
                ) from None

    def _post(self, client: httpx.Client, url: httpx.URL, body: bytes) -> None:
        token = self.settings.webhook_token
        headers = {"Content-Type": "application/json", "User-Agent": f"reliable-channel/{__version__}"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token.get_secret_value()}"
        try:
            # The body is not read, because it is the receiver's text.
            with (
                deadline(self.settings.webhook_timeout_ms / 1000),
                client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                status, retry_after_s = answer.status_code, read_retry_after(answer.headers.get("retry-after", ""))
        except httpx.HTTPError as error:
            raise _AgainError(type(error).__name__) from None
        if status in _TEMPORARY or status >= 500:
            raise _AgainError(f"it answered {status}", retry_after_s)
        if not 200 <= status < 300:
            raise EnvironmentFault(
                f"The webhook refused the alerts with status {status}.",
                "Check its URL and token; they are sent again by the next run.",
            )


def _to_json(row: dict[str, Any]) -> dict[str, Any]:
    """A row as JSON values: ``id`` for receivers that want each change once, times in ISO 8601 (UTC)."""
    plain = {name: value.isoformat() if isinstance(value, dt.datetime) else value for name, value in row.items()}
    return {"id": plain.pop("sequence"), **plain}
