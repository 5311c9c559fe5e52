"""Provides a bounded HTTP client for nodes that may be slow, wrong or hostile: time-outs, size limits, and no secret
in an error."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from reliable_channel.core import foreign_json
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.core.printable import escape_unprintable
from reliable_channel.transport.http.deadline import deadline, open_client

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Largest answer that is read: a full page of 100 messages of 150 KiB in base64 is 21 MB."""

DEFAULT_TIMEOUT_S = 10.0
"""nwaku answers within 5 s, or says that it could not; see docs/spec/waku-rest.md *Common*."""

EXCHANGE_S = 60.0
"""The longest that an exchange takes, from connecting to the last byte: the time-out alone starts again at every
byte."""

MAX_RETRY_AFTER_S = 60.0
"""The longest wait that a node may ask for: beyond it, one that is wrong or hostile would be as good as gone."""


class NodeUnreachable(EnvironmentFault):
    """No usable answer: connection refused, time-out, or an answer over the size limit. The cause names the node
    without credentials; ``retry_after_s``: see :class:`HttpResponse`."""

    def __init__(self, cause: str, remedy: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(cause, remedy)
        self.retry_after_s = retry_after_s


class NodeTimedOut(NodeUnreachable):
    """The node did not answer in time, though it may have accepted the connection."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """An HTTP answer: status, and the body as bytes, at most ``MAX_BODY_BYTES``. ``retry_after_s``: how long the node
    asks to be left alone after a failure, at most ``MAX_RETRY_AFTER_S``; 0 if it does not say."""

    status: int
    body: bytes
    retry_after_s: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the HTTP status is a success; the body may still report a failure."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as printable text, of at most 300 characters, for reasons and logs."""
        return escape_unprintable(self.body[:1200].decode("utf-8", "replace").strip()[:300])

    def json(self) -> Any:
        """The body as JSON; ``None`` for a body that is not JSON, and for ``null``."""
        try:
            return foreign_json.loads(self.body)
        except (ValueError, RecursionError):  # also: not UTF-8, numbers of thousands of digits
            return None


class BoundedHttp:
    """HTTP to one node. ``base_url`` may carry credentials; ``name`` is the address without them. Thread-safe."""

    def __init__(
        self,
        base_url: str,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        max_body_bytes: int = MAX_BODY_BYTES,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        try:
            url = httpx.URL(base_url)
        except (httpx.InvalidURL, TypeError):
            raise ConfigurationError("A node's address is not a URL.", "Write http://host:8645.") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigurationError("A node's address is not an http(s) URL.", "Write http://host:8645.")
        port = f":{url.port}" if url.port else ""
        host = f"[{url.host}]" if ":" in url.host else url.host
        self.name = f"{url.scheme}://{host}{port}{url.path.rstrip('/')}"
        self._max_body_bytes = max_body_bytes
        # Credentials go into a header: the texts and logs of httpx show addresses as they are.
        auth = httpx.BasicAuth(url.username, url.password) if url.userinfo else None
        self._base = self.name
        self._client = open_client(
            url,
            timeout=httpx.Timeout(timeout_s, connect=min(5.0, timeout_s)),
            auth=auth,
            # Not compressed: a hundred kilobytes of zstd become gigabytes at once.
            headers={"Accept": "application/json", "Accept-Encoding": "identity", **(headers or {})},
        )

    def get(self, path: str, query: Mapping[str, str] | None = None) -> HttpResponse:
        """``path`` is already encoded; ``query`` is encoded here. Raises :class:`NodeUnreachable`."""
        return self._ask("GET", path, query, None, None)

    def post(self, path: str, body: Any) -> HttpResponse:
        """Send ``body`` as JSON. Raises :class:`NodeUnreachable`."""
        return self._ask("POST", path, None, body, None)

    def delete(self, path: str, body: Any, timeout_s: float | None = None) -> HttpResponse:
        """The same with DELETE. Raises :class:`NodeUnreachable`."""
        return self._ask("DELETE", path, None, body, timeout_s)

    def close(self) -> None:
        """Close connections. Closing twice does nothing."""
        self._client.close()

    def _ask(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, timeout_s: float | None
    ) -> HttpResponse:
        content = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {} if content is None else {"Content-Type": "application/json"}
        try:
            with (
                deadline(EXCHANGE_S),
                self._client.stream(
                    method,
                    self._base + path,
                    params=None if query is None else dict(query),
                    content=content,
                    headers=headers,
                    timeout=httpx.USE_CLIENT_DEFAULT if timeout_s is None else timeout_s,
                ) as response,
            ):
                received = bytearray()
                for part in response.iter_raw():
                    received += part
                    if len(received) > self._max_body_bytes:
                        raise NodeUnreachable(f"{self.name} answered with more than {self._max_body_bytes} bytes.")
                if response.headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
                    raise NodeUnreachable(f"{self.name} answered compressed, which it was asked not to do.")
                failed = response.status_code >= 400
                retry_after_s = read_retry_after(response.headers.get("retry-after", "")) if failed else 0.0
                answer = HttpResponse(response.status_code, bytes(received), retry_after_s)
                if answer.ok and received.lstrip().startswith(b"<"):
                    # The front page or login of a proxy. It would pass for the success of a call that returns nothing.
                    raise NodeUnreachable(f"{self.name} answered with a page, which is no JSON of a Waku node.")
                return answer
        except httpx.TimeoutException as error:
            raise NodeTimedOut(f"{self.name} did not answer in time ({type(error).__name__}).") from None
        except (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, RuntimeError) as error:
            # RuntimeError: the client was closed by another thread. The texts of httpx may hold the whole URL.
            raise NodeUnreachable(f"{self.name} cannot be reached ({type(error).__name__}).") from None


def read_retry_after(text: str) -> float:
    """The seconds to wait by a header ``Retry-After`` (RFC 9110 10.2.3), a number of seconds or a date; 0 for what is
    neither, and for a date of the past. At most ``MAX_RETRY_AFTER_S``."""
    if re.fullmatch("[0-9]{1,100}", text):
        return min(float(text), MAX_RETRY_AFTER_S)
    try:
        at = parsedate_to_datetime(text[:100])
        wait_s = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):  # of many kinds, as the texts are
        return 0.0
    return min(max(wait_s, 0.0), MAX_RETRY_AFTER_S)
