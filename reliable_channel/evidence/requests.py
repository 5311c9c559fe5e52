"""Finds the missing messages to ask store nodes for: those that ``refetch_requests`` names, and those that senders
dispatched but nobody saw."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.evidence.arrivals import MESSAGE, find_arrived, key_of
from reliable_channel.lake.read import dataset_of, exists, in_our_time, open_table
from reliable_channel.lake.tables import CLOCK, REFETCH_REQUESTS, SENDER_EVENTS
from reliable_channel.transport.store.model import is_message_hash

MAX_REQUESTS = 5_000
"""Maximum number of requests queried in one run; the rest follow in the next run."""
SENT_WITHIN = dt.timedelta(hours=2)
"""How far back from the recorded clock dispatched messages are compared with received ones."""


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


def open_requests(settings: Settings, answers: Iterable[dict[str, Any]]) -> list[Request]:
    """Return the newest attempt for every message that is still missing and was not fetched yet. A hint that is not a
    message hash counts as none, because no store knows it. Channels take turns, so that a channel with many requests
    does not delay the others."""
    columns = [*MESSAGE, "attempt", "retrieval_hint", "event_time"]
    rows = in_our_time(dataset_of(open_table(settings.paths, REFETCH_REQUESTS)).to_table(columns=columns))
    newest: dict[tuple[str, str, str, str], tuple[int, bytes | None, dt.datetime | None]] = {}
    for *message, attempt, hint, at in zip(*(rows[name].to_pylist() for name in columns), strict=True):
        if None in message[1:] or attempt is None:  # no store can be queried for it
            continue
        if attempt > newest.get(key := tuple(message), (0,))[0]:
            newest[key] = (attempt, hint, at)
    done = {(key_of(row), row["attempt"]) for row in answers}
    wanted = {key: request for key, request in newest.items() if (key, request[0]) not in done}
    here = find_arrived(settings, {key[3] for key in wanted})
    requests = [
        Request(*key, hint if hint is not None and is_message_hash(hint) else b"", attempt, at)
        for key, (attempt, hint, at) in wanted.items()
        if key not in here
    ]
    return in_turns(sorted(requests, key=lambda r: (r.attempt, r.sds_id)))[:MAX_REQUESTS]


def in_turns(requests: Iterable[Request]) -> list[Request]:
    """Yield the first request of every channel, then the second of every channel, and so on."""
    turns: Counter[tuple[str, str, str]] = Counter()
    placed: list[tuple[int, Request]] = []
    for request in requests:
        channel = (request.pubsub_topic, request.content_topic, request.channel_id)
        placed.append((turns[channel], request))
        turns[channel] += 1
    return [request for _, request in sorted(placed, key=lambda each: each[0])]


def find_sent_and_not_seen(settings: Settings, answers: Iterable[dict[str, Any]]) -> list[Request]:
    """Return the envelopes that senders recorded as dispatched and that have not arrived after the settle delay. If no
    message names such a message, the ack job does not request it. Each is queried until a store node has answered; only
    those of the last :data:`SENT_WITHIN` before the recorded clock are considered."""
    if not exists(settings.paths, SENDER_EVENTS):
        return []
    events = dataset_of(open_table(settings.paths, SENDER_EVENTS))
    columns = [*MESSAGE, "envelope_hash", "event_time"]
    dispatched = pc.field("event").isin(["sent", "resent"]) & pc.field("envelope_hash").is_valid()
    newest = pc.max(
        dataset_of(open_table(settings.paths, CLOCK)).to_table(columns=["event_time"])["event_time"]
    ).as_py()
    if newest is None:
        return []
    until = newest - dt.timedelta(milliseconds=settings.pipeline.settle_delay_ms)
    recent = (pc.field("event_time") >= newest - SENT_WITHIN) & (pc.field("event_time") <= until)
    rows = events.to_table(columns=columns, filter=dispatched & recent & pc.field("sds_id").is_valid()).to_pylist()
    done = {row["message_hash"] for row in answers if row["outcome"] != "error"}
    here = find_arrived(settings, {row["sds_id"] for row in rows})
    wanted = {
        row["envelope_hash"]: Request(*key_of(row), row["envelope_hash"], 0)
        for row in rows
        if row["envelope_hash"] not in done
        and key_of(row) not in here
        and settings.channels.topic_for(row["content_topic"] or "", row["pubsub_topic"] or "") is not None
    }
    return [*wanted.values()]
