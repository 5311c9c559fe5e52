"""Fetches missing envelopes from store nodes and writes them to Kafka.

``refetch_requests``, and messages that senders dispatched but nobody saw, are queried by hash; requests without a hint,
and the missing segments of overdue sets (:mod:`~reliable_channel.evidence.overdue_sets`), by content topic and the time
range before the request; ``source_gaps`` by time range. The envelopes go to
``waku.envelopes`` with ``source=store``. ``store_presence`` gets one row per node and envelope, which makes disagreeing
stores visible. A sample of everything seen is audited as well (:mod:`~reliable_channel.evidence.audit`). This is a
batch job without Spark, because it mostly waits for responses. It delivers at least once: a crash repeats its queries,
and the pipeline removes the duplicates.
"""

from __future__ import annotations

import datetime as dt
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.config.channels import ChannelTopic
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import WireFamily, decode_sds_message
from reliable_channel.core.wire.segment import Segment, decode_segment
from reliable_channel.evidence.audit import Audited, to_audit
from reliable_channel.evidence.overdue_sets import PURPOSE, OverdueSet, open_sets
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import dataset_of, exists, in_our_time, open_table, public_dataset, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import (
    CHANNEL_KEY,
    CLOCK,
    ENVELOPES,
    REFETCH_REQUESTS,
    SDS_MESSAGES,
    SENDER_EVENTS,
    SOURCE_GAPS,
    STORE_PRESENCE,
)
from reliable_channel.lake.tables.evidence import UNPROVEN
from reliable_channel.transport.base import hash_candidates
from reliable_channel.transport.store.client import NodeAnswer, StoreClient
from reliable_channel.transport.store.model import StoreEntry, StoreQuery, is_message_hash
from reliable_channel.transport.store.rest_node import StoreNodeError

MAX_REQUESTS = 5_000
"""Maximum number of requests queried in one run; the rest follow in the next run."""
SENT_WITHIN = dt.timedelta(hours=2)
"""How far back from the recorded clock dispatched messages are compared with received ones."""
GAP_MARGIN = dt.timedelta(seconds=30)
"""The margin added at both ends of a gap's time range, because senders' clocks differ from ours."""

NAMED_WITHIN = dt.timedelta(hours=1)
"""How long before the request a message without a hint may have been sent."""
MAX_OF_A_TOPIC = 5_000
"""Maximum number of envelopes written back per run for one content topic's requests without a hint."""

_MESSAGE = (*CHANNEL_KEY, "sds_id")

WriteBack = Callable[[Sequence[StoreEntry]], None]
"""Writes entries (with data) to the envelopes topic as ``source=store``; returns when all replicas have them."""


@dataclass(frozen=True, slots=True)
class Request:
    """One missing message to fetch. ``retrieval_hint`` is empty if no message hash is known; ``attempt`` is the newest
    attempt requested by the ack job, 0 if it requested none and only the sender's record shows that the message was
    sent."""

    pubsub_topic: str
    content_topic: str
    channel_id: str
    sds_id: str
    retrieval_hint: bytes
    attempt: int
    event_time: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class RefetchResult:
    """The result of one run: queries by hash, queries for gaps, envelopes written back, envelopes audited."""

    requests: int = 0
    gaps: int = 0
    written: int = 0
    audited: int = 0


def refetch(settings: Settings, client: StoreClient, write_back: WriteBack) -> RefetchResult:
    """Query all open requests and gaps once. Does nothing if no store node is configured."""
    if not client.nodes:
        return RefetchResult()
    create_tables(settings.paths, (STORE_PRESENCE,))
    asked = dataset_of(open_table(settings.paths, STORE_PRESENCE)).to_table(
        columns=["purpose", *_MESSAGE, "attempt", "detail", "message_hash", "outcome"]
    )
    refetches = asked.filter(pc.is_in(asked["purpose"], value_set=pa.array(["refetch", "range"]))).to_pylist()
    every = open_requests(settings, refetches)
    requests = [request for request in every if request.retrieval_hint]
    unhinted = [request for request in every if not request.retrieval_hint]
    requests += sent_and_not_seen(settings, refetches)[: MAX_REQUESTS - len(requests)]
    written = _by_hash(settings, client, write_back, requests) if requests else 0
    sets = open_sets(settings, asked.filter(pc.equal(asked["purpose"], PURPOSE)).to_pylist(), MAX_REQUESTS)
    written += _by_range(settings, client, write_back, [*unhinted, *sets])
    done = {row["detail"] for row in asked.filter(pc.equal(asked["purpose"], "gap")).to_pylist()}
    gaps = _gaps(settings, done)
    for gap in gaps:
        written += _fill(settings, client, write_back, gap)
    audited = set(asked.filter(pc.equal(asked["purpose"], "audit"))["message_hash"].to_pylist())
    sample = to_audit(settings, dt.datetime.now(dt.UTC), audited)
    _audit(settings, client, sample)
    return RefetchResult(len(requests) + len(unhinted) + len(sets), len(gaps), written, len(sample))


def open_requests(settings: Settings, asked: Iterable[dict[str, Any]]) -> list[Request]:
    """Return the newest attempt for every message that is still missing and was not fetched yet. A hint that is not a
    message hash counts as none, because no store knows it. Channels take turns, so that a channel with many requests
    does not delay the others."""
    columns = [*_MESSAGE, "attempt", "retrieval_hint", "event_time"]
    rows = in_our_time(dataset_of(open_table(settings.paths, REFETCH_REQUESTS)).to_table(columns=columns))
    newest: dict[tuple[str, str, str, str], tuple[int, bytes | None, dt.datetime | None]] = {}
    for *message, attempt, hint, at in zip(*(rows[name].to_pylist() for name in columns), strict=True):
        if None in message[1:] or attempt is None:  # no store can be queried for it
            continue
        if attempt > newest.get(key := tuple(message), (0,))[0]:
            newest[key] = (attempt, hint, at)
    done = {(_message(row), row["attempt"]) for row in asked}
    wanted = {key: found for key, found in newest.items() if (key, found[0]) not in done}
    here = _arrived(settings, {key[3] for key in wanted})
    found = [
        Request(*key, hint if hint is not None and is_message_hash(hint) else b"", attempt, at)
        for key, (attempt, hint, at) in wanted.items()
        if key not in here
    ]
    return in_turns(sorted(found, key=lambda r: (r.attempt, r.sds_id)))[:MAX_REQUESTS]


def in_turns(requests: Iterable[Request]) -> list[Request]:
    """Yield the first request of every channel, then the second of every channel, and so on."""
    turns: Counter[tuple[str, str, str]] = Counter()
    placed: list[tuple[int, Request]] = []
    for request in requests:
        channel = (request.pubsub_topic, request.content_topic, request.channel_id)
        placed.append((turns[channel], request))
        turns[channel] += 1
    return [request for _, request in sorted(placed, key=lambda each: each[0])]


def _message(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """The columns ``_MESSAGE`` of a row: an SDS id alone does not identify a message, because anybody may repeat it in
    another channel."""
    return tuple(row[name] for name in _MESSAGE)


def sent_and_not_seen(settings: Settings, asked: Iterable[dict[str, Any]]) -> list[Request]:
    """Return the envelopes that senders recorded as dispatched and that have not arrived after the settle delay. If no
    message names such a message, the ack job does not request it. Each is queried until a store node has answered; only
    those of the last :data:`SENT_WITHIN` before the recorded clock are considered."""
    if not exists(settings.paths, SENDER_EVENTS):
        return []
    events = dataset_of(open_table(settings.paths, SENDER_EVENTS))
    columns = [*_MESSAGE, "envelope_hash", "event_time"]
    dispatched = pc.field("event").isin(["sent", "resent"]) & pc.field("envelope_hash").is_valid()
    newest = pc.max(
        dataset_of(open_table(settings.paths, CLOCK)).to_table(columns=["event_time"])["event_time"]
    ).as_py()
    if newest is None:
        return []
    until = newest - dt.timedelta(milliseconds=settings.pipeline.settle_delay_ms)
    recent = (pc.field("event_time") >= newest - SENT_WITHIN) & (pc.field("event_time") <= until)
    rows = events.to_table(columns=columns, filter=dispatched & recent & pc.field("sds_id").is_valid()).to_pylist()
    done = {row["message_hash"] for row in asked if row["outcome"] != "error"}
    here = _arrived(settings, {row["sds_id"] for row in rows})
    wanted = {
        row["envelope_hash"]: Request(*_message(row), row["envelope_hash"], 0)
        for row in rows
        if row["envelope_hash"] not in done
        and _message(row) not in here
        and settings.channels.topic_for(row["content_topic"] or "", row["pubsub_topic"] or "") is not None
    }
    return [*wanted.values()]


def _arrived(settings: Settings, sds_ids: set[str]) -> set[tuple[str, str, str, str]]:
    """Return which of these messages have arrived meanwhile, from their senders or from a store."""
    if not sds_ids:
        return set()
    data = public_dataset(open_table(settings.paths, SDS_MESSAGES))
    rows = data.to_table(columns=[*_MESSAGE], filter=pc.field("sds_id").isin(sorted(sds_ids)))
    return {*zip(*(rows[name].to_pylist() for name in _MESSAGE), strict=True)}


def _by_hash(settings: Settings, client: StoreClient, write_back: WriteBack, requests: list[Request]) -> int:
    answers = client.look_up([request.retrieval_hint for request in requests])
    found = {e.message_hash: e for answer in answers for e in answer.entries if e.message is not None}
    holds = {r: (e := found.get(r.retrieval_hint)) is None or _holds(settings, e, r) for r in requests}
    wanted = {request.retrieval_hint for request in requests if holds[request] is not False}
    entries = [entry for hash_, entry in found.items() if hash_ in wanted]
    write_back(entries)
    rows = [
        _presence_row(
            answer,
            request.retrieval_hint,
            "refetch",
            holds[request],
            pubsub_topic=request.pubsub_topic,
            content_topic=request.content_topic,
            channel_id=request.channel_id,
            sds_id=request.sds_id,
            attempt=request.attempt,
        )
        for answer in answers
        for request in requests
    ]
    append_rows(settings.paths, STORE_PRESENCE, as_arrow(rows, STORE_PRESENCE))
    return len(entries)


def _holds(settings: Settings, entry: StoreEntry, request: Request) -> bool | None:
    """Whether an envelope contains the requested message; ``None`` if it is encrypted, so that this cannot be decided
    here. A hint is only a claim of the naming sender: it may point to any envelope of a store."""
    if not request.attempt or entry.message is None:
        return True
    if (entry.pubsub_topic, entry.message.content_topic) != (request.pubsub_topic, request.content_topic):
        return False
    topic = settings.channels.topic_for(request.content_topic, request.pubsub_topic)
    if topic is None:
        return True
    if topic.decryption_key_files:  # only executors have the keys
        return None
    message = decode_sds_message(entry.message.payload, topic.family)
    if isinstance(message, Malformed):
        return False
    return (message.channel_id, message.message_id) == (request.channel_id, request.sds_id)


Ranged = Request | OverdueSet
"""What is requested by content topic and time."""


def _by_range(settings: Settings, client: StoreClient, write_back: WriteBack, requests: Sequence[Ranged]) -> int:
    """Query every node for the content topics of requests without a hint, in the time range before the requests.

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
            start_time_ns=_ns(min(times), -NAMED_WITHIN),
            end_time_ns=_ns(max(times), GAP_MARGIN),
        )
        channel = settings.channels.topic_for(content_topic, pubsub_topic or "")
        encrypted = channel is not None and bool(channel.decryption_key_files)
        missing = {_identity(request) for request in wanted}
        found: dict[str, set[bytes]] = {}
        faults: dict[str, str] = {}
        taken: dict[bytes, tuple[StoreEntry, frozenset[Identity]]] = {}
        for node, page in client.walk_each(query):
            hashes = found.setdefault(node, set())
            if isinstance(page, StoreNodeError):
                faults[node] = page.fault.value
                continue
            for entry in page.entries:
                if entry.message is None:
                    continue
                contained = _identities(entry.message.payload, channel)
                if (contained & missing or (not contained and encrypted)) and len(taken) < MAX_OF_A_TOPIC:
                    taken.setdefault(entry.message_hash, (entry, contained))
                    hashes.add(entry.message_hash)
        # Of a set, stores also have the segments that arrived; they do not complete it.
        named = {each for _, contained in taken.values() for each in contained if isinstance(each[1], str)}
        arrived = {each[2:] for each in _arrived(settings, {str(sds_id) for _, sds_id in named})}
        taken = {hash_: one for hash_, one in taken.items() if not one[1] & arrived}
        entries = _not_here(settings, [entry for entry, _ in taken.values()])
        write_back(entries)
        written += len(entries)
        rows = [
            _range_row(node, request, any(_identity(request) in taken[h][1] for h in hashes & taken.keys()), fault)
            for node, hashes in found.items()
            for fault in (faults.get(node),)
            for request in wanted
        ]
        append_rows(settings.paths, STORE_PRESENCE, as_arrow(rows, STORE_PRESENCE))
    return written


Identity = tuple[str | None, str | bytes | None]
"""What an envelope can contain: channel id with an SDS id, or with the hash of the payload that it has a segment of."""


def _identity(request: Ranged) -> Identity:
    return request.channel_id, request.entire_message_hash if isinstance(request, OverdueSet) else request.sds_id


def _identities(payload: bytes, channel: ChannelTopic | None) -> frozenset[Identity]:
    """What a payload contains; nothing if it cannot be decoded."""
    message = decode_sds_message(payload, WireFamily.SPEC if channel is None else channel.family)
    if isinstance(message, Malformed):
        return frozenset()
    contained: set[Identity] = {(message.channel_id, message.message_id)}
    if message.content and channel is not None:
        segment = decode_segment(message.content, channel.dialects)
        if isinstance(segment, Segment):
            contained.add((message.channel_id, segment.entire_message_hash))
    return frozenset(contained)


def _range_row(node: str, request: Ranged, present: bool, fault: str | None) -> dict[str, Any]:
    """The presence row of a request by range. A node that failed after it returned what was missing has it."""
    outcome = "present" if present else "absent" if fault is None else "error"
    common = {name: getattr(request, name) for name in (*CHANNEL_KEY, "attempt")}
    if isinstance(request, OverdueSet):
        return _presence(node, None, outcome, PURPOSE, fault or request.entire_message_hash.hex(), **common)
    return _presence(node, None, outcome, "range", fault, sds_id=request.sds_id, **common)


def _audit(settings: Settings, client: StoreClient, sample: Sequence[Audited]) -> None:
    """Record which node holds which envelopes of a sample. Nothing is fetched, because all of them are here."""
    if not sample:
        return
    answers = client.look_up([hash_ for one in sample for hash_ in one.hashes], include_data=False)
    rows = [
        _presence_row(
            answer,
            next((hash_ for hash_ in one.hashes if answer.has(hash_)), one.message_hash),
            "audit",
            pubsub_topic=one.pubsub_topic,
            content_topic=one.content_topic,
            channel_id=one.channel_id,
            sds_id=one.sds_id,
        )
        | {"message_hash": one.message_hash}
        for answer in answers
        for one in sample
    ]
    append_rows(settings.paths, STORE_PRESENCE, as_arrow(rows, STORE_PRESENCE))


def _presence_row(
    answer: NodeAnswer, message_hash: bytes, purpose: str, holds: bool | None = True, **more: Any
) -> dict[str, Any]:
    """Build the row for the presence of one hash at a node. ``holds``: whether its envelope contains the requested
    message. Another message, or an undecidable one, proves nothing about the requested one."""
    outcome = {True: "present", False: "absent", None: "error"}[answer.has(message_hash)]
    detail = answer.error.fault.value if answer.error is not None else None
    if holds is False:
        outcome, detail = "error", detail or "another message"
    elif holds is None and outcome == "present":
        detail = UNPROVEN
    return _presence(answer.node, message_hash, outcome, purpose, detail, **more)


def _gaps(settings: Settings, done: Collection[str]) -> list[dict[str, Any]]:
    """Return the gaps with a known start that are not ``done``, with the content topics of their partition's
    records."""
    gaps = rows_of(open_table(settings.paths, SOURCE_GAPS))
    # The bridge fills its own gaps; and a gap without a start has no range to query.
    gaps = [g for g in gaps if g["cause"] == "offset_jump" and g["from_time"] is not None and g["to_time"] is not None]
    gaps = [g for g in gaps if g["name"] not in done]
    if not gaps:
        return []
    data = dataset_of(open_table(settings.paths, ENVELOPES))
    columns = ["kafka_topic", "kafka_partition", "pubsub_topic", "content_topic"]
    topics = data.to_table(columns=columns).group_by(columns).aggregate([]).to_pylist()
    for gap in gaps:
        gap["topics"] = sorted(
            (t["pubsub_topic"], t["content_topic"])
            for t in topics
            if (t["kafka_topic"], t["kafka_partition"]) == (gap["kafka_topic"], gap["kafka_partition"])
            and t["content_topic"] is not None
            and t["pubsub_topic"] is not None
            and settings.channels.topic_for(t["content_topic"], t["pubsub_topic"]) is not None
        )
    return gaps


def _fill(settings: Settings, client: StoreClient, write_back: WriteBack, gap: dict[str, Any]) -> int:
    """Query every node for the channels' envelopes in the time range of a gap; write back those that are missing
    here."""
    written = 0
    rows: list[dict[str, Any]] = []
    for pubsub_topic, content_topic in gap["topics"]:
        query = StoreQuery(
            pubsub_topic=pubsub_topic,
            content_topics=(content_topic,),
            start_time_ns=_ns(gap["from_time"], -GAP_MARGIN),
            end_time_ns=_ns(gap["to_time"], GAP_MARGIN),
        )
        known: set[bytes] = set()
        for node, page in client.walk_each(query):
            if isinstance(page, StoreNodeError):
                rows.append(_presence(node, None, "error", "gap", gap["name"], content_topic=content_topic))
                continue
            new = [e for e in page.entries if e.message is not None and e.message_hash not in known]
            known |= {entry.message_hash for entry in new}
            missing = _not_here(settings, new)
            write_back(missing)
            written += len(missing)
            rows.append(_presence(node, None, "present", "gap", gap["name"], content_topic=content_topic))
    if not rows:
        rows.append(_presence(client.nodes[0], None, "absent", "gap", gap["name"]))
    append_rows(settings.paths, STORE_PRESENCE, as_arrow(rows, STORE_PRESENCE))
    return written


def _not_here(settings: Settings, entries: Sequence[StoreEntry]) -> list[StoreEntry]:
    if not entries:
        return []
    hashes = {entry.message_hash: _hashes_of(entry) for entry in entries}
    data = dataset_of(open_table(settings.paths, ENVELOPES))
    among = pc.field("message_hash").isin([*{hash_ for each in hashes.values() for hash_ in each}])
    here = set(data.to_table(columns=["message_hash"], filter=among)["message_hash"].to_pylist())
    return [entry for entry in entries if not hashes[entry.message_hash] & here]


def _hashes_of(entry: StoreEntry) -> set[bytes]:
    """The hashes under which an envelope may be known: here the specified one, at some nodes another."""
    if entry.message is None or entry.pubsub_topic is None:
        return {entry.message_hash}
    return {entry.message_hash, *hash_candidates(entry.pubsub_topic, entry.message)}


def _presence(
    node: str, message_hash: bytes | None, outcome: str, purpose: str, detail: str | None, **more: Any
) -> dict[str, Any]:
    return {
        "node": node,
        "message_hash": message_hash,
        "outcome": outcome,
        "purpose": purpose,
        "detail": detail,
        "asked_at": time.time_ns() // 1000,
        **more,
    }


def _ns(moment: dt.datetime, later: dt.timedelta) -> int:
    """Return ``moment`` + ``later`` as Unix ns, limited to times that stores accept."""
    since = moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + later
    return min(max(0, since // dt.timedelta(microseconds=1) * 1000), 2**63 - 1)
