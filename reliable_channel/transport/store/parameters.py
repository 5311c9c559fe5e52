"""Reads the query parameters of ``GET /store/v3/messages`` as running nwaku nodes read them.

Pure: names and values in, a request or the text of a 400 out. Unknown parameters are ignored, as on nodes. A known one
that has two values, or differs only in case, is refused, because nodes would silently ignore half of the query. The
same value twice counts as once, as the published interop tests require.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from starlette.exceptions import HTTPException

from reliable_channel.transport.store.model import DEFAULT_PAGE_SIZE, HASH_BYTES, MAX_PAGE_SIZE, StoreQuery
from reliable_channel.transport.store.peer_address import problem_of

MAX_CONTENT_TOPICS = 10
MAX_REQUESTED_HASHES = 100
"""The maximum number of hashes: more would not fit one page, and running clients stay below it."""

_TRUE = frozenset({"true", "1", "yes", "on", "y"})
_FALSE = frozenset({"false", "0", "no", "off", "n"})
_HEX = frozenset("0123456789abcdefABCDEF")
_INT64 = range(-(2**63), 2**63)

_HASH = "0x2593a9966d0629687b9daed89d977356f619437a761ca6b38514430149de1c28"
_TIME = {"type": "string", "pattern": "^-?[0-9]{1,19}$"}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter as the OpenAPI document describes it."""

    name: str
    description: str
    schema: dict[str, Any]
    example: str


PARAMETERS = (
    Parameter("includeData", "Whether entries hold the messages, or their hashes only.", {"type": "boolean"}, "true"),
    Parameter("pubsubTopic", "Only messages of this pubsub topic.", {"type": "string"}, "/waku/2/rs/16/32"),
    Parameter(
        "contentTopics",
        f"Only messages of these content topics, comma separated, at most {MAX_CONTENT_TOPICS}.",
        {"type": "string"},
        "/my-app/1/chat/proto",
    ),
    Parameter(
        "startTime",
        "Only messages not sent before: Unix time in ns by the sender's clock; 0 or less is no bound.",
        _TIME,
        "1795254432521844140",
    ),
    Parameter(
        "endTime",
        "Only messages not sent after: Unix time in ns by the sender's clock, included; 0 or less is no bound.",
        _TIME,
        "1795254432521844142",
    ),
    Parameter(
        "hashes",
        f"Only these messages: hashes of 32 bytes in hex, comma separated, at most {MAX_REQUESTED_HASHES}.",
        {"type": "string"},
        _HASH,
    ),
    Parameter("cursor", "Go on after this message: `paginationCursor` of the last page.", {"type": "string"}, _HASH),
    Parameter(
        "pageSize",
        f"Messages a page; 0 is {DEFAULT_PAGE_SIZE}, negative or more than {MAX_PAGE_SIZE} is {MAX_PAGE_SIZE}.",
        {"type": "integer", "format": "int64", "default": DEFAULT_PAGE_SIZE},
        "20",
    ),
    Parameter(
        "ascending",
        "`true`: from the oldest page on; anything else: from the newest back. Every page is oldest first.",
        {"type": "string", "default": "true"},
        "true",
    ),
    Parameter(
        "peerAddr",
        "Multiaddr of a store peer. It is checked and not dialled: this server answers from its own archive.",
        {"type": "string"},
        "/ip4/192.0.2.1/tcp/60000/p2p/16Uiu2HAkz2A5XTK6hFmikFDZj5ZfhWeTKdntK9rG91cPszuBX3z3",
    ),
)
_NAMES = {parameter.name.lower(): parameter.name for parameter in PARAMETERS}


def read_parameters(pairs: Iterable[tuple[str, str]]) -> StoreQuery:
    """The query of these names and values, in their order. Raises ``HTTPException`` (400) with the text that nodes
    answer if one is malformed."""
    query = _select_known(pairs)
    peer = query.get("peerAddr", "")
    if peer and (problem := problem_of(peer)) is not None:
        raise HTTPException(400, f"Failed parsing remote peer info: {problem}")
    include_data = _read_boolean(query.get("includeData", ""))
    topics = [topic for topic in query.get("contentTopics", "").split(",") if topic]
    if len(topics) > MAX_CONTENT_TOPICS:
        raise HTTPException(400, f"too many content topics: {len(topics)}, at most {MAX_CONTENT_TOPICS}")
    hashes = [_read_hash(text) for text in query.get("hashes", "").split(",") if text]
    if len(set(hashes)) > MAX_REQUESTED_HASHES:
        raise HTTPException(400, f"too many hashes: {len(set(hashes))}, at most {MAX_REQUESTED_HASHES}")
    cursor = query.get("cursor", "")
    return StoreQuery(
        pubsub_topic=query.get("pubsubTopic") or None,
        content_topics=tuple(topics),
        start_time_ns=_read_time(query.get("startTime", "")),
        end_time_ns=_read_time(query.get("endTime", "")),
        hashes=tuple(dict.fromkeys(hashes)),
        cursor=_read_hash(cursor) if cursor else None,
        page_size=_read_page_size(query.get("pageSize", "")),
        # Only lower-case `true` is forward, as on nwaku; an empty value counts as not given.
        forward=query.get("ascending", "") in ("", "true"),
        include_data=include_data,
    )


def _select_known(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    query: dict[str, str] = {}
    for name, value in pairs:
        meant = _NAMES.get(name.lower())
        if meant is None:
            continue
        if name != meant:
            raise HTTPException(400, f"unknown parameter {name}, it is written {meant}")
        if query.get(name, value) != value:
            raise HTTPException(400, f"parameter {name} is given with several values; separate them by commas")
        query[name] = value
    return query


def _read_boolean(text: str) -> bool:
    if not text or text.lower() in _FALSE:
        return False
    if text.lower() in _TRUE:
        return True
    raise HTTPException(400, f"include data parsing error: cannot interpret as a bool: {text[:40]}")


def _read_integer(text: str, what: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    if not (0 < len(digits) <= 19 and digits.isascii() and digits.isdigit()) or int(text) not in _INT64:
        raise HTTPException(400, f"{what} parsing error: invalid integer: {text[:40]}")
    return int(text)


def _read_time(text: str) -> int | None:
    if not text:
        return None
    time_ns = _read_integer(text, "time")
    return time_ns if time_ns > 0 else None


def _read_page_size(text: str) -> int:
    size = _read_integer(text, "page size") if text else 0
    if size == 0:
        return DEFAULT_PAGE_SIZE
    return size if 0 < size <= MAX_PAGE_SIZE else MAX_PAGE_SIZE


def _read_hash(text: str) -> bytes:
    digits = text[2:] if text[:2] in ("0x", "0X") else text
    for letter in digits:
        if letter not in _HEX:
            raise HTTPException(
                400, f"Exception converting hex string to bytes: {letter} is not a hexadecimal character"
            )
    if len(digits) % 2:
        raise HTTPException(400, "Exception converting hex string to bytes: hex string must have even length")
    digest = bytes.fromhex(digits)
    if len(digest) != HASH_BYTES:
        raise HTTPException(400, f"waku message hash parsing error: invalid hash length: {len(digest)}")
    return digest
