"""Parses lines of node logs into sightings: nwaku and logos-delivery (chronicles), go-waku and status-go (zap, geth).

No I/O. A line is of interest if it is one of :data:`EVENTS` and has a whole message hash; docs/howto/node-logs.md names
the sources of the formats. Lines hold text that strangers chose, such as content topics: fields are taken apart by the
rules of the format, so that such text can neither hide a sighting nor invent one.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from reliable_channel.core import foreign_json
from reliable_channel.lake.tables import EPOCH, micros

MAX_TEXT = 1_024
MAX_PEERS = 200
"""The most peers of one line that become sightings of their own."""
EARLIEST_US = 1_577_836_800_000_000
"""2020-01-01 in µs: nothing can have been seen before there was Waku v2."""
AHEAD_US = 86_400_000_000
"""How far a time may be in the future: a day."""

_FROM, _TO, _TARGETS = "from_peer_id", "to_peer_id", "target_peer_ids"
EVENTS: dict[str, tuple[str, tuple[str, ...]]] = {
    # nwaku, logos-delivery: relay
    "received relay message": ("received", (_FROM,)),
    "sent relay message": ("relayed", (_TO,)),
    "start publish waku message": ("publishing", ()),
    "waku.relay published": ("published", ()),  # go-waku as well
    "rejecting relay message, waku validator rejected": ("rejected", ()),
    "protocol generateorderedvalidator reject waku validator": ("rejected", ()),
    "too large waku message": ("rejected", ()),
    "invalid waku message": ("rejected", ()),
    "uncertain invalid waku message": ("rejected", ()),
    # store
    "message archived": ("stored", ()),
    "message archived in syncmessageingress": ("stored", ()),
    "invalid message": ("not_stored", ()),
    "failed to insert message": ("not_stored", ()),
    "failed to insert message in in syncmessageingress": ("not_stored", ()),
    "handling message": ("received", ()),  # filter as well
    "handling message in syncmessageingress": ("received", ()),
    # filter
    "pushed message successfully to all subscribers": ("pushed", (_TARGETS,)),
    "pushed message succesfully to all subscribers": ("pushed", (_TARGETS,)),
    "timed out pushing message to peers": ("not_pushed", (_TARGETS,)),
    "no subscribed peers found": ("filtered_out", ()),
    "received message push": ("received", ("peerId", "peerID")),  # go-waku as well
    # lightpush
    "handling lightpush request": ("received", ("peer_id",)),
    "handling legacy lightpush request": ("received", ("peer_id",)),
    "lightpush request has not been published to any peers": ("failed", ()),
    "publish": ("publishing", ("peerId",)),
    "publishing message with lightpush": ("publishing", ("target_peer_id",)),
    "publishing message with legacy lightpush": ("publishing", ("target_peer_id",)),
    "publishing message with self hosted lightpush": ("publishing", ("target_peer_id",)),
    "publishing message with self hosted legacy lightpush": ("publishing", ("target_peer_id",)),
    # Messaging API
    "message received": ("received", ()),
    "message successfully propagated": ("published", ()),
    "message successfully sent": ("confirmed", ()),
    "failed to send message": ("failed", ()),
    # go-waku
    "waku.relay received": ("received", ()),
    "waku.lightpush published": ("published", ()),
    "publishing message via relay": ("publishing", ()),
    "publishing message via lightpush": ("publishing", ()),
    "could not publish message": ("failed", ("peer",)),
    "message pushed succesfully": ("pushed", ("peer",)),
    "pushing message": ("not_pushed", ("peer",)),  # an error line
    "pushing messages to peer": ("not_pushed", ("peer",)),
    # status-go
    "received new envelope": ("received", ()),
    "invalid envelope received": ("rejected", ()),
    "filters did not match": ("filtered_out", ()),
    "could not send message": ("failed", ()),
}
"""The text of a line, in lower case → the kind of sighting, and the fields that name the other peers."""

REPEATS = frozenset(
    {
        "pushing message to subscribed peers",
        "duplicate message found, not pushing to subscribed peers",
        "duplicate message found, not-pushing message to subscribed peers",
        "publishtoany",
        "skipping duplicate message",
        "trying message delivery via relay",
        "message propagated via relay",
        "push message to filter subscribers",
        "pushing message to light node",
        "cached w envelope",
        "w envelope already cached",
        "posting event",
        "immediately processing envelope",
        "filters did match",
    }
)
"""Lines that show nothing which another line of the same node does not show."""

_HASHES = ("msg_hash", "msgHash", "hash", "envelopeHash", "message_hash")
_TOPICS = ("pubsubTopic", "topic", "pubsub_topic", "shard")
_OWN_IDS = ("my_peer_id", "myPeerId", "node")
_HASH = re.compile(r"0x[0-9a-fA-F]{64}\Z")
_COLOUR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_CONTROL = bytes({*range(0x20), 0x7F} - {0x09})
_WORDS = r"[^\s=]++(?!=)(?:\ [^\s=]++(?!=))*+"
_TEXT_LINE = re.compile(
    rf"""\A.{{0,120}}?(?:
       \b(?:TRC|DBG|INF|NTC|NOT|WRN|ERR|FAT)\ (?P<time>\d{{4}}-\d\d-\d\d[ T][0-9:.]+(?:Z|[+-][0-9:]+)?)\s++
       (?P<text>{_WORDS})\s++(?P<fields>\w++=.*)
      |\b(?:TRACE|DEBUG|INFO|WARN|ERROR|CRIT)\s*\[(?P<no_year>\d\d-\d\d\|[0-9:.]+)[^]]*\]\s++
       (?P<text2>{_WORDS})\s++(?P<fields2>\w++=.*)
      |(?P<time3>\d{{4}}-\d\d-\d\dT[0-9:.]+(?:Z|[+-][0-9:]+)?)\t
       (?:[^\t{{]*+\t)*?(?P<text3>[^\t{{]*+)\t(?P<json>\{{.*\}})\s*+\Z
    )""",
    re.VERBOSE,
)
"""Chronicles' *textlines*; the terminal format of go-ethereum; zap's console format. A log shipper may have written up
to 120 characters before them. Nothing in it is tried twice: the time for a line grows with its length only."""
_FIELD = re.compile(r'(?<![\w-])([\w-]++)=("(?:[^"\\]|\\.)*+"|\S*+)')
_CONTAINER = re.compile(r"[\w:.+-]{10,40} (?:stdout|stderr) [FP] ")
"""What Kubernetes writes before a line."""
_SOME = re.compile(r'some\("(.*)"\)\Z', re.IGNORECASE)
_PEER = re.compile(r"[0-9A-Za-z*.…]{6,128}")


class LogSighting(NamedTuple):
    """One thing that a node did with a message. ``node``: its own peer id, if the line has it."""

    message_hash: bytes
    kind: str
    peer: str | None
    seen_at_us: int
    pubsub_topic: str | None
    node: str | None


@dataclass(frozen=True, slots=True)
class Unread:
    """A line that names a message but gives no sighting: its text is not one of :data:`EVENTS` (``text``), or its time
    is impossible or missing."""

    text: str | None


def may_matter(line: bytes) -> bool:
    """Whether a line is worth parsing: most lines of a log name no message. ``ash`` is in every one of
    :data:`_HASHES`."""
    return b"ash" in line and b"0x" in line


def parse_line(line: bytes, now_us: int) -> list[LogSighting] | Unread | None:
    """The sightings of a line; ``None`` if it names no message. ``now_us``: Unix µs, the limit of plausible times."""
    parsed = _split_line(line)
    if parsed is None:
        return None
    text, time, fields = parsed
    digits = next((value for name in _HASHES if isinstance(value := fields.get(name), str)), "")
    if _HASH.match(digits) is None:
        return None
    words = text.strip().lower()
    event = EVENTS.get(words)
    if event is None:
        return None if words in REPEATS else Unread(text.strip()[:MAX_TEXT])
    seen_at = _read_time(time, fields, now_us)
    if seen_at is None:
        return Unread(None)
    kind, names = event
    topic, node, hash_ = (
        _read_topic(fields),
        to_text(next(filter(None, map(fields.get, _OWN_IDS)), None)),
        digits[2:],
    )
    peers: list[str | None] = [*_find_peers(next((fields[name] for name in names if name in fields), None))]
    return [LogSighting(bytes.fromhex(hash_), kind, peer, seen_at, topic, node) for peer in peers or [None]]


def read_field(line: bytes, path: str) -> str | None:
    """The text at ``path``, such as ``kubernetes.pod_name``, in the JSON that a log shipper put around a line."""
    value: Any = _parse_json(line.decode("utf-8", "replace"))
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return to_text(value)


def _split_line(line: bytes, wrapped: bool = False) -> tuple[str, Any, Mapping[str, Any]] | None:
    """Text, time and fields of a line in any of the formats; ``wrapped``: it was inside the JSON of a collector."""
    if b"\x1b" in line:
        line = _COLOUR.sub(b"", line)
    text = line.translate(None, _CONTROL).decode("utf-8", "replace").strip()
    if text.startswith("{"):
        return _split_json(text, wrapped)
    match = _TEXT_LINE.search(text)
    if match is None:
        before, brace, rest = text.partition('{"')
        return _split_json(brace + rest, wrapped) if _CONTAINER.fullmatch(before) else None
    group = match.group
    if group("json") is not None:
        fields = _parse_json(group("json"))
        return None if fields is None else (group("text3"), group("time3"), fields)
    named = _FIELD.findall(group("fields") or group("fields2"))
    unquoted = {name: value[1:-1].replace('\\"', '"') if value[:1] == '"' else value for name, value in reversed(named)}
    return group("text") or group("text2"), group("time") or group("no_year"), unquoted


def _split_json(text: str, wrapped: bool) -> tuple[str, Any, Mapping[str, Any]] | None:
    fields = _parse_json(text)
    if fields is None:
        return None
    for name in ("msg", "M"):
        if isinstance(message := fields.get(name), str):
            return message, next(filter(None, map(fields.get, ("ts", "T", "time", "timestamp"))), None), fields
    inner = next((line for name in ("log", "message") if isinstance(line := fields.get(name), str)), None)
    return _split_line(inner.encode("utf-8", "replace"), True) if inner is not None and not wrapped else None


def _parse_json(text: str) -> Mapping[str, Any] | None:
    try:
        fields = foreign_json.loads(text.replace("\t", " ").encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return fields if isinstance(fields, dict) else None


def _read_time(time: Any, fields: Mapping[str, Any], now_us: int) -> int | None:
    """Unix µs of a line; ``None`` for an impossible time. Without a zone it counts as UTC."""
    try:
        if isinstance(time, (int, float)):
            at = int(time * 1e6)
        elif "|" in time:
            at = _read_time_without_year(time, fields, now_us)
        else:
            at = _convert_to_us(dt.datetime.fromisoformat(time))
    except (ValueError, OverflowError, TypeError):
        return None
    return at if EARLIEST_US <= at <= now_us + AHEAD_US else None


def _convert_to_us(time: dt.datetime) -> int:
    return micros(time if time.tzinfo else time.replace(tzinfo=dt.UTC))


def _read_time_without_year(time: str, fields: Mapping[str, Any], now_us: int) -> int:
    """A time of go-ethereum's format, which has no year: the one nearest to the message's own timestamp, else the
    newest that is not in the future."""
    sent_ns = str(fields.get("timestamp", ""))
    sent_us = int(sent_ns[:-3]) if sent_ns.isdecimal() and 4 <= len(sent_ns) < 20 else None
    year = (EPOCH + dt.timedelta(microseconds=now_us if sent_us is None else sent_us)).year
    times = []
    for each in (year - 1, year, year + 1):
        try:
            times.append(_convert_to_us(dt.datetime.strptime(f"{each}-{time}", "%Y-%m-%d|%H:%M:%S.%f")))
        except ValueError:  # 29 February
            continue
    if sent_us is not None:
        return min(times, key=lambda at: abs(at - sent_us))
    return max(at for at in times if at <= now_us + AHEAD_US)


def _read_topic(fields: Mapping[str, Any]) -> str | None:
    for name in _TOPICS:
        value = fields.get(name)
        if isinstance(value, str) and value.startswith(("/", "some", "Some")):
            optional = _SOME.match(value)
            return to_text(optional[1] if optional else value)
    return None


def _find_peers(value: Any) -> Iterator[str]:
    """The peer ids in a field: one, or a list in the notation of Nim (``@["a", "b"]``) or of JSON."""
    for number, match in enumerate(_PEER.finditer(str(value) if isinstance(value, (str, list)) else "")):
        if number == MAX_PEERS:
            return
        yield match[0]


def to_text(value: Any) -> str | None:
    """Bounded text. ``None`` for an empty one, by which some languages write what is absent."""
    return value[:MAX_TEXT] if isinstance(value, str) and value else None
