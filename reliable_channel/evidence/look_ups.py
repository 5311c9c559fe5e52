"""Asks store nodes for missing messages, by hash or by content topic and time.

What a node returns is written as it comes, so a slow node delays no other's answer. The rows of ``store_presence``
follow when all have ended."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from reliable_channel.config import Settings
from reliable_channel.config.channels import ChannelTopic
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import WireFamily, decode_in_families
from reliable_channel.core.wire.segment import Segment, decode_segment
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.evidence.arrivals import MESSAGE, drop_known, find_arrived
from reliable_channel.evidence.fill import GAP_MARGIN, WriteBack, to_ns
from reliable_channel.evidence.overdue_sets import PURPOSE, OverdueSet
from reliable_channel.evidence.presence import make_row, make_row_of_hash
from reliable_channel.evidence.requests import Request
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CHANNEL_KEY, STORE_PRESENCE
from reliable_channel.transport.store.client import StoreClient
from reliable_channel.transport.store.model import StoreEntry, StorePage, StoreQuery
from reliable_channel.transport.store.rest_node import StoreNodeError

NAMED_WITHIN = dt.timedelta(hours=1)
"""How long before the request a message without a hint may have been sent."""
MAX_OF_A_TOPIC = 5_000
"""Maximum number of envelopes written back per run for one content topic's requests without a hint."""

Ranged = Request | OverdueSet
"""What is requested by content topic and time."""

Identity = tuple[str | None, str | bytes | None]
"""What an envelope can contain: channel id with an SDS id, or with the hash of the payload that it has a segment of."""


def fetch_by_hash(settings: Settings, client: StoreClient, write_back: WriteBack, requests: list[Request]) -> int:
    """Query every node for the hints of ``requests``; write back the envelopes that may contain what is missing.
    Returns how many were written."""
    by_hint: dict[bytes, list[Request]] = {}
    for request in requests:
        by_hint.setdefault(request.retrieval_hint, []).append(request)
    seen: set[bytes] = set()
    holds: dict[Request, bool | None] = {}
    written: set[bytes] = set()

    def take(page: StorePage) -> None:
        wanted = []
        for entry in page.entries:
            if entry.message is None or entry.message_hash in seen:
                continue
            seen.add(entry.message_hash)
            content = _read_content(settings, entry, entry.message)
            of_entry = {each: _holds(entry, content, each) for each in by_hint.get(entry.message_hash, ())}
            holds.update(of_entry)
            if any(each is not False for each in of_entry.values()):
                wanted.append(entry)
        write_back(wanted)
        written.update(entry.message_hash for entry in wanted)

    answers = client.look_up([*by_hint], on_page=take)
    rows = [
        make_row_of_hash(
            answer,
            request.retrieval_hint,
            "refetch",
            holds.get(request, True),
            **{name: getattr(request, name) for name in (*MESSAGE, "attempt")},
        )
        for answer in answers
        for request in requests
    ]
    append_rows(settings.paths, STORE_PRESENCE, as_arrow(rows, STORE_PRESENCE))
    return len(written)


def _holds(entry: StoreEntry, content: Identity | bool | None, request: Request) -> bool | None:
    """Whether an envelope with this content contains the requested message; ``None`` if that cannot be decided here. A
    hint is only a claim of the naming sender: it may point to any envelope of a store."""
    if not request.attempt or entry.message is None:  # 0: the sender itself recorded that this envelope has it
        return True
    if (entry.pubsub_topic, entry.message.content_topic) != (request.pubsub_topic, request.content_topic):
        return False
    return content == (request.channel_id, request.sds_id) if isinstance(content, tuple) else content


def _read_content(settings: Settings, entry: StoreEntry, message: WakuMessage) -> Identity | bool | None:
    """What an envelope contains; ``None`` if it is encrypted, ``False`` if it cannot be decoded, ``True`` if its topic
    is not configured."""
    topic = settings.channels.topic_for(message.content_topic, entry.pubsub_topic or "")
    if topic is None:
        return True
    if topic.decryption_key_files:  # only executors have the keys
        return None
    decoded = decode_in_families(message.payload, topic.families)
    return False if isinstance(decoded, Malformed) else (decoded[1].channel_id, decoded[1].message_id)


def fetch_by_range(settings: Settings, client: StoreClient, write_back: WriteBack, requests: Sequence[Ranged]) -> int:
    """Query every node for the content topics of requests without a hint, in the time range before the requests.
    Returns how many envelopes were written.

    Writes back the envelopes with one of the missing ids or a segment of one of the sets, and on topics with keys all
    envelopes that are not here: stores cannot filter by sender or SDS id, and nothing is decrypted here. The presence
    rows have no message hash."""
    topics: dict[tuple[str, str], list[Ranged]] = {}
    for request in requests:
        if request.event_time is not None:
            topics.setdefault((request.pubsub_topic, request.content_topic), []).append(request)
    written = 0
    for (pubsub_topic, content_topic), wanted in topics.items():
        times = [request.event_time for request in wanted if request.event_time is not None]
        query = StoreQuery(
            pubsub_topic=pubsub_topic,
            content_topics=(content_topic,),
            start_time_ns=to_ns(min(times), -NAMED_WITHIN),
            end_time_ns=to_ns(max(times), GAP_MARGIN),
        )
        missing = frozenset(_identify_request(request) for request in wanted)
        search = _Search(settings, settings.channels.topic_for(content_topic, pubsub_topic or ""), missing)
        faults: dict[str, str] = {}
        for node, page in client.walk_each(query):
            if isinstance(page, StoreNodeError):
                search.held.setdefault(node, set())
                faults[node] = page.fault.value
                continue
            entries = search.take(node, page)
            write_back(entries)
            written += len(entries)
        rows = [
            _make_range_row(node, request, _identify_request(request) in held, faults.get(node))
            for node, held in search.held.items()
            for request in wanted
        ]
        append_rows(settings.paths, STORE_PRESENCE, as_arrow(rows, STORE_PRESENCE))
    return written


@dataclass(slots=True)
class _Search:
    """What nodes have of what is ``missing`` on one content topic. ``held``: node → what its envelopes contain, but for
    those whose message had arrived."""

    settings: Settings
    channel: ChannelTopic | None
    missing: frozenset[Identity]
    held: dict[str, set[Identity]] = field(default_factory=dict)
    _taken: dict[bytes, frozenset[Identity]] = field(default_factory=dict)
    """Hash of an envelope that is written back → what it contains."""

    def take(self, node: str, page: StorePage) -> list[StoreEntry]:
        """The entries of a page to write back: those that may contain what is missing, are not here, and did not come
        with an earlier page."""
        held = self.held.setdefault(node, set())
        encrypted = self.channel is not None and bool(self.channel.decryption_key_files)
        wants_sets = _names_set(self.missing)
        new: dict[bytes, tuple[StoreEntry, frozenset[Identity]]] = {}
        for entry in page.entries:
            if entry.message is None or entry.message_hash in self._taken:
                continue
            contained = _identify_payload(entry.message.payload, self.channel)
            # The set of a segment is unknown where its content alone is encrypted.
            is_hidden = not contained or (wants_sets and not _names_set(contained))
            may_fit = bool(contained & self.missing) or (encrypted and is_hidden)
            if may_fit:
                new[entry.message_hash] = entry, contained
        # Of a set, stores also have the segments that arrived; they do not complete it.
        named = {str(each[1]) for _, contained in new.values() for each in contained if isinstance(each[1], str)}
        arrived = {each[2:] for each in find_arrived(self.settings, named)}
        fresh = {hash_: one for hash_, one in new.items() if not one[1] & arrived}
        held |= {identity for _, contained in fresh.values() for identity in contained}
        for entry in page.entries:
            held |= self._taken.get(entry.message_hash, frozenset())
        # What arrived takes no room here: a stranger sends any number of segments of a set, or under a missing id.
        room = MAX_OF_A_TOPIC - len(self._taken)
        written = drop_known(self.settings, [entry for entry, _ in fresh.values()])[:room]
        self._taken |= {entry.message_hash: fresh[entry.message_hash][1] for entry in written}
        return written


def _names_set(identities: frozenset[Identity]) -> bool:
    """Whether one of them is a set of segments, named by its hash."""
    return any(isinstance(each[1], bytes) for each in identities)


def _identify_request(request: Ranged) -> Identity:
    return request.channel_id, request.entire_message_hash if isinstance(request, OverdueSet) else request.sds_id


def _identify_payload(payload: bytes, channel: ChannelTopic | None) -> frozenset[Identity]:
    """What a payload contains; nothing if it cannot be decoded."""
    decoded = decode_in_families(payload, tuple(WireFamily) if channel is None else channel.families)
    if isinstance(decoded, Malformed):
        return frozenset()
    message = decoded[1]
    contained: set[Identity] = {(message.channel_id, message.message_id)}
    if message.content and channel is not None:
        segment = decode_segment(message.content, channel.dialects)
        if isinstance(segment, Segment):
            contained.add((message.channel_id, segment.entire_message_hash))
    return frozenset(contained)


def _make_range_row(node: str, request: Ranged, present: bool, fault: str | None) -> dict[str, Any]:
    """The presence row of a request by range. A node that failed after it returned what was missing has it."""
    outcome = "present" if present else "absent" if fault is None else "error"
    common = {name: getattr(request, name) for name in (*CHANNEL_KEY, "attempt")}
    if isinstance(request, OverdueSet):
        return make_row(node, None, outcome, PURPOSE, fault or request.entire_message_hash.hex(), **common)
    return make_row(node, None, outcome, "range", fault, sds_id=request.sds_id, **common)
