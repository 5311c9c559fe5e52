"""Finds the missing messages to ask store nodes for: those that ``refetch_requests`` names, and those that senders
dispatched but nobody saw."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from operator import attrgetter

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.core.shares import take_turns
from reliable_channel.evidence.arrivals import MESSAGE, find_arrived, find_envelopes, key_of
from reliable_channel.lake.read import dataset_of, exists, in_our_time, open_table
from reliable_channel.lake.tables import CLOCK, REFETCH_REQUESTS, SENDER_EVENTS
from reliable_channel.transport.store.model import is_message_hash

MAX_REQUESTS = 5_000
"""Maximum number of requests queried in one run; the rest follow in the next run."""
_LONG_AGO = dt.datetime.min.replace(tzinfo=dt.UTC)
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


def find_open_requests(settings: Settings, answers: pa.Table) -> list[Request]:
    """Return the newest attempt for every message that is still missing and was not fetched yet. A hint that is not a
    message hash counts as none, because no store knows it. Channels take turns, so that a channel with many requests
    does not delay the others. ``answers``: rows of ``store_presence``."""
    columns = [*MESSAGE, "attempt", "retrieval_hint", "event_time"]
    rows = in_our_time(dataset_of(open_table(settings.paths, REFETCH_REQUESTS)).to_table(columns=columns))
    newest = _find_unanswered(_fill_topics(rows), _fill_topics(answers))
    wanted = {key_of(row): row for row in newest.to_pylist()}
    here = find_arrived(settings, {key[3] for key in wanted})
    requests = [
        Request(
            *key,
            hint if is_message_hash(hint := row["retrieval_hint"] or b"") else b"",
            row["attempt"],
            row["event_time"],
        )
        for key, row in wanted.items()
        if key not in here
    ]
    # The oldest first, whatever its name or attempt: strangers choose names, and may name new ids without end.
    oldest_first = sorted(requests, key=lambda r: (r.event_time or _LONG_AGO, r.sds_id))
    in_turn = take_turns(oldest_first, attrgetter("pubsub_topic", "content_topic", "channel_id"))
    return [request for _, request in in_turn[:MAX_REQUESTS]]


def _find_unanswered(requests: pa.Table, answers: pa.Table) -> pa.Table:
    """The requests whose attempt is the newest for their message, and has no answer. Almost all have one, also those
    of weeks ago, so they are compared in Arrow: as Python objects they take ten times the memory and the time."""
    newest = requests.group_by(_REQUEST[:-1]).aggregate([("attempt", "max")]).rename_columns(_REQUEST)
    # Nothing is asked of a store for a message without its names: joins find no null.
    unanswered = newest.drop_null().join(answers, _REQUEST, join_type="left anti", use_threads=False)
    return requests.join(unanswered, _REQUEST, join_type="left semi", use_threads=False)


_REQUEST = ["topic", *MESSAGE[1:], "attempt"]
"""The columns that name a request, for joins."""


def _fill_topics(rows: pa.Table) -> pa.Table:
    """The rows with a column ``topic``: the pubsub topic, or a text that is none, since null equals nothing in a
    join."""
    return rows.append_column("topic", pc.fill_null(rows["pubsub_topic"], "\0"))


def find_sent_and_not_seen(settings: Settings, answers: pa.Table) -> list[Request]:
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
    sent = events.to_table(columns=columns, filter=dispatched & recent & pc.field("sds_id").is_valid())
    queried = pc.is_in(answers["message_hash"], value_set=sent["envelope_hash"].combine_chunks())
    answered = pc.not_equal(answers["outcome"], "error").fill_null(True)
    done = {*answers.filter(pc.and_(queried, answered))["message_hash"].to_pylist()}
    rows = sent.to_pylist()
    here = find_arrived(settings, {row["sds_id"] for row in rows})
    wanted = {
        row["envelope_hash"]: Request(*key_of(row), row["envelope_hash"], 0)
        for row in rows
        if row["envelope_hash"] not in done
        and key_of(row) not in here
        and settings.channels.topic_for(row["content_topic"] or "", row["pubsub_topic"] or "") is not None
    }
    # Also by its hash: nothing proves the id of a sync message, which has no content.
    seen = find_envelopes(settings, {*wanted})
    return [request for hash_, request in wanted.items() if hash_ not in seen]
