"""A server of the Messaging API over real HTTP, and a reader of its server-sent events."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.messaging.rest.app import create_app
from tests.support.http_server import running
from tests.support.messaging_world import World

CONFIG = ReliableChannelConfig(query_on_connect=False)


@contextmanager
def serving(world: World) -> Iterator[tuple[str, Any]]:
    app = create_app(world.node, channels=lambda _: CONFIG, clock=world.clock, threaded=False, run_node=False)
    with running(app, lifespan="on", on_stop=app.state.poll.stop) as url:
        yield url.removeprefix("http://"), app


class Stream:
    """One connection that reads events as they come."""

    def __init__(self, address: str, path: str, last: str | None = None) -> None:
        self.connection = http.client.HTTPConnection(address, timeout=120)
        self.connection.request("GET", path, headers={} if last is None else {"Last-Event-ID": last})
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        assert self.answer.headers["Content-Type"].startswith("text/event-stream")
        assert self.block() == {"retry": "1000"}

    def block(self) -> dict[str, str] | None:
        """The fields of the next block; None at the end."""
        fields: dict[str, str] = {}
        while line := self.answer.readline().decode():
            if line == "\n":
                return fields
            name, _, value = line.rstrip("\n").partition(": ")
            fields[name] = value
        return None

    def event(self) -> tuple[str, Any]:
        """The id and the value of the next event."""
        while (fields := self.block()) is not None:
            if "data" in fields:
                return fields["id"], json.loads(fields["data"])
        raise AssertionError("the stream ended")

    def close(self) -> None:
        self.connection.close()
