"""Crashes as values: a persistence and a node that kill their process at a chosen operation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reliable_channel.channel import ChannelKey, Persistence
from reliable_channel.channel.node_channels import _nodes
from reliable_channel.channel.persistence import LabelledSend, StoredChannel
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import RequestId
from reliable_channel.transport.memory import MemoryNode


class Crash(BaseException):
    """The process ends here: nobody may catch this as an error."""


@dataclass
class Fuse:
    """Burns down with every operation; at zero the process dies, before the operation or after it."""

    left: int = -1
    after: bool = False

    def burn(self, operation: Callable[[], None]) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crash
        operation()
        if self.left == 0:
            raise Crash


class MortalPersistence:
    """Passes on to a persistence that survives, unless the fuse is out."""

    def __init__(self, inner: Persistence, fuse: Fuse) -> None:
        self.inner = inner
        self.fuse = fuse

    def acquire(self, sender_id: str, key: ChannelKey | None = None) -> Callable[[], None]:
        return self.inner.acquire(sender_id)  # what crashes releases no channel, and its process dies with it

    def sender_id(self) -> str:
        return self.inner.sender_id()

    def load(self, key: ChannelKey) -> StoredChannel:
        return self.inner.load(key)

    def append(self, key: ChannelKey, *arguments: Any) -> None:
        self.fuse.burn(lambda: self.inner.append(key, *arguments))

    def forget_label(self, key: ChannelKey, label: str) -> None:
        self.fuse.burn(lambda: self.inner.forget_label(key, label))

    def find_send(self, key: ChannelKey, label: str) -> LabelledSend | None:
        return self.inner.find_send(key, label)

    def compact(self, key: ChannelKey, snapshot: bytes, fingerprint: str) -> None:
        self.fuse.burn(lambda: self.inner.compact(key, snapshot, fingerprint))

    def mark_reported(self, key: ChannelKey, events: Sequence[str], sequence: int) -> None:
        self.fuse.burn(lambda: self.inner.mark_reported(key, events, sequence))

    def put_segments(self, key: ChannelKey, payloads: Mapping[int, bytes]) -> None:
        self.fuse.burn(lambda: self.inner.put_segments(key, payloads))

    def segments(self, key: ChannelKey, numbers: Collection[int]) -> dict[int, bytes]:
        return self.inner.segments(key, numbers)

    def keep_segments(self, key: ChannelKey, numbers: Collection[int]) -> None:
        self.fuse.burn(lambda: self.inner.keep_segments(key, numbers))

    def get(self, name: str) -> bytes | None:
        return self.inner.get(name)

    def put(self, name: str, value: bytes) -> None:
        self.fuse.burn(lambda: self.inner.put(name, value))

    def close(self) -> None:
        """The test closes the inner one."""


def make_mortal(node: MemoryNode, fuse: Fuse) -> None:
    """Let the process also die around a dispatch."""
    send = type(node).send

    def mortal(message: WakuMessage, pubsub_topic: str | None = None, **_: object) -> RequestId:
        sent: list[RequestId] = []
        fuse.burn(lambda: sent.append(send(node, message, pubsub_topic)))
        return sent[0]

    node.send = mortal  # type: ignore[method-assign]


def kill(node: MemoryNode) -> None:
    """What SIGKILL does: nobody listens, nothing that was accepted goes out, nothing is remembered in memory."""
    node._dispatcher._registrations = ()
    node.stop()
    _nodes.pop(node, None)
