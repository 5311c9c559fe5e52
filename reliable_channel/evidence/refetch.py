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
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.evidence.arrivals import MESSAGE
from reliable_channel.evidence.audit import Audited, to_audit
from reliable_channel.evidence.fill import WriteBack, fill_gap, open_gaps
from reliable_channel.evidence.look_ups import fetch_by_hash, fetch_by_range
from reliable_channel.evidence.overdue_sets import PURPOSE, open_sets
from reliable_channel.evidence.presence import row_of_hash
from reliable_channel.evidence.requests import MAX_REQUESTS, find_sent_and_not_seen, open_requests
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import dataset_of, open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import STORE_PRESENCE
from reliable_channel.transport.store.client import StoreClient


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
    answers = dataset_of(open_table(settings.paths, STORE_PRESENCE)).to_table(
        columns=["purpose", *MESSAGE, "attempt", "detail", "message_hash", "outcome"]
    )
    refetches = answers.filter(pc.is_in(answers["purpose"], value_set=pa.array(["refetch", "range"]))).to_pylist()
    every = open_requests(settings, refetches)
    requests = [request for request in every if request.retrieval_hint]
    unhinted = [request for request in every if not request.retrieval_hint]
    requests += find_sent_and_not_seen(settings, refetches)[: MAX_REQUESTS - len(requests)]
    written = fetch_by_hash(settings, client, write_back, requests) if requests else 0
    sets = open_sets(settings, answers.filter(pc.equal(answers["purpose"], PURPOSE)).to_pylist(), MAX_REQUESTS)
    written += fetch_by_range(settings, client, write_back, [*unhinted, *sets])
    gaps = open_gaps(settings, answers.filter(pc.equal(answers["purpose"], "gap")).to_pylist())
    for gap in gaps:
        written += fill_gap(settings, client, write_back, gap)
    audited = set(answers.filter(pc.equal(answers["purpose"], "audit"))["message_hash"].to_pylist())
    sample = to_audit(settings, dt.datetime.now(dt.UTC), audited)
    _audit(settings, client, sample)
    return RefetchResult(len(requests) + len(unhinted) + len(sets), len(gaps), written, len(sample))


def _audit(settings: Settings, client: StoreClient, sample: Sequence[Audited]) -> None:
    """Record which node holds which envelopes of a sample. Nothing is fetched, because all of them are here."""
    if not sample:
        return
    answers = client.look_up([hash_ for one in sample for hash_ in one.hashes], include_data=False)
    rows = [
        row_of_hash(
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
