"""The query parameters of ``GET /store/v3/messages`` read as running nwaku nodes read them (waku-rest.md *Store v3*).

Pure: text in, values or a 400 text out. Unknown parameters are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from reliable_channel.store.model import DEFAULT_PAGE_SIZE, HASH_BYTES, MAX_PAGE_SIZE
from reliable_channel.store.source import Selection

MAX_CONTENT_TOPICS = 10
MAX_REQUESTED_HASHES = 100
"""More would not fit one page; look-ups of running clients stay below it."""

_TRUE = frozenset({"true", "1", "yes", "on", "y"})
_FALSE = frozenset({"false", "0", "no", "off", "n"})
_HEX = frozenset("0123456789abcdefABCDEF")
_INT64 = range(-(2**63), 2**63)


class BadParameter(Exception):
    """A parameter is malformed; the text is what the node answers with status 400."""


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What a client asked for."""

    selection: Selection
    cursor: bytes | None
    page_size: int
    forward: bool
    include_data: bool


def read_parameters(query: Mapping[str, str]) -> PageRequest:
    """Raises :class:`BadParameter`."""
    peer = query.get("peerAddr", "")
    if peer and not peer.startswith("/"):
        raise BadParameter(
            "Failed parsing remote peer info: "
            "MultiAddress.init [multiaddress: Invalid MultiAddress, must start with `/`]"
        )
    include_data = _boolean(query.get("includeData", ""))
    topics = [topic for topic in query.get("contentTopics", "").split(",") if topic]
    if len(topics) > MAX_CONTENT_TOPICS:
        raise BadParameter(f"too many content topics: {len(topics)}, at most {MAX_CONTENT_TOPICS}")
    hashes = [_hash(text) for text in query.get("hashes", "").split(",") if text]
    if len(set(hashes)) > MAX_REQUESTED_HASHES:
        raise BadParameter(f"too many hashes: {len(set(hashes))}, at most {MAX_REQUESTED_HASHES}")
    cursor = query.get("cursor", "")
    return PageRequest(
        Selection(
            pubsub_topic=query.get("pubsubTopic") or None,
            content_topics=tuple(topics) or None,
            start_time_ns=_time(query.get("startTime", "")),
            end_time_ns=_time(query.get("endTime", "")),
            hashes=tuple(dict.fromkeys(hashes)) or None,
        ),
        cursor=_hash(cursor) if cursor else None,
        page_size=_page_size(query.get("pageSize", "")),
        # Only lower-case `true` is forward, as on nwaku; an empty value counts as not given.
        forward=query.get("ascending", "") in ("", "true"),
        include_data=include_data,
    )


def _boolean(text: str) -> bool:
    if not text or text.lower() in _FALSE:
        return False
    if text.lower() in _TRUE:
        return True
    raise BadParameter(f"include data parsing error: cannot interpret as a bool: {text[:40]}")


def _integer(text: str, what: str) -> int:
    digits = text.removeprefix("-").removeprefix("+")
    if not (0 < len(digits) <= 19 and digits.isascii() and digits.isdigit()) or int(text) not in _INT64:
        raise BadParameter(f"{what} parsing error: invalid integer: {text[:40]}")
    return int(text)


def _time(text: str) -> int | None:
    if not text:
        return None
    found = _integer(text, "time")
    return found if found > 0 else None


def _page_size(text: str) -> int:
    size = _integer(text, "page size") if text else 0
    if size == 0:
        return DEFAULT_PAGE_SIZE
    return size if 0 < size <= MAX_PAGE_SIZE else MAX_PAGE_SIZE


def _hash(text: str) -> bytes:
    digits = text[2:] if text[:2] in ("0x", "0X") else text
    for letter in digits:
        if letter not in _HEX:
            raise BadParameter(f"Exception converting hex string to bytes: {letter} is not a hexadecimal character")
    if len(digits) % 2:
        raise BadParameter("Exception converting hex string to bytes: hex string must have even length")
    found = bytes.fromhex(digits)
    if len(found) != HASH_BYTES:
        raise BadParameter(f"waku message hash parsing error: invalid hash length: {len(found)}")
    return found
