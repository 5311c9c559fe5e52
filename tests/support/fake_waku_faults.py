"""What can be wrong with a fake Waku node, and the values its handlers pass on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Dialect = Literal["nwaku", "go-waku"]


@dataclass
class Faults:
    """What is wrong with a node now; change it at any time. ``paths`` restricts the faults to paths that contain it."""

    down: bool = False
    slow_s: float = 0.0
    status: int | None = None
    body: str = ""
    retry_after: str = ""
    """The header ``Retry-After`` of an answer with ``status``."""
    refused: list[str] = field(default_factory=list)
    """The paths that were answered with ``status``."""
    paths: str = ""
    publish_reaches_nobody: bool = False
    """Publishing answers well and nothing happens."""
    publish_but_fail: int | None = None
    """The message goes out, and the answer is this status all the same."""
    no_peers: bool = False
    repeat_reads: bool = False
    """Every read of messages gives the last one's messages once more."""
    store_status_code: int | None = None
    """A peer's failure inside HTTP 200."""
    store_v3: str = ""
    """A go-waku node's fault of Store v3, such as ``protocols not supported``; Store v1 still answers."""
    store_corrupt: bool = False
    """Stored messages come back with another payload under their hash."""
    garbage: bytes | None = None
    """The body of every answer."""


@dataclass
class Reply(Exception):
    status: int
    body: Any = None
    kind: Literal["json", "text", "none"] = "json"


@dataclass
class Call:
    method: str
    path: str
    query: dict[str, str]
    raw: bytes
    body: Any = None
    segments: list[str] = field(default_factory=list)
