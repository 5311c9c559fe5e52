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
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.evidence.arrivals import MESSAGE
from reliable_channel.evidence.audit import Audited, choose_sample
from reliable_channel.evidence.fill import WriteBack, fill_gap, find_open_gaps
from reliable_channel.evidence.look_ups import fetch_by_hash, fetch_by_range
from reliable_channel.evidence.overdue_sets import find_open_sets
from reliable_channel.evidence.presence import ANOTHER_MESSAGE, make_row_of_hash
from reliable_channel.evidence.requests import MAX_REQUESTS, find_open_requests, find_sent_and_not_seen
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import dataset_of, in_our_time, open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import STORE_PRESENCE
from reliable_channel.transport.base import FailureReason, Source
from reliable_channel.transport.bridge_writer import SafeWriter
from reliable_channel.transport.kafka_producer import EnvelopeProducer
from reliable_channel.transport.kafka_records import envelope_record
from reliable_channel.transport.store.client import StoreClient
from reliable_channel.transport.store.model import StoreEntry

PATIENCE = dt.timedelta(minutes=1)
"""How long a store node is asked as usual although it does not answer. A round that fails may take half of it."""
MAX_PAUSE = dt.timedelta(minutes=5)
"""How long a store node is left alone, at most, while it does not answer: each of its failures may take minutes."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pause:
    """A node, or all of them, have not answered ``since``, and are not asked ``until``."""

    since: dt.datetime
    until: dt.datetime


@dataclass(frozen=True, slots=True)
class RefetchResult:
    """The result of one run: queries by hash, queries for gaps, envelopes written back, envelopes audited. ``pause``:
    why nothing was queried."""

    requests: int = 0
    gaps: int = 0
    written: int = 0
    audited: int = 0
    pause: Pause | None = None

    def __str__(self) -> str:
        if self.pause is not None:
            since, until = (f"{at:%H:%M:%S}" for at in (self.pause.since, self.pause.until))
            return f"no store node has answered since {since} UTC; they are asked again at {until}"
        asked = f"asked for {self.requests} messages and {self.gaps} gaps"
        return f"{asked}, got {self.written} envelopes; audited {self.audited}"


def refetch(settings: Settings, client: StoreClient, write_back: WriteBack) -> RefetchResult:
    """Query all open requests and gaps once, from the store nodes that are not left alone (:func:`find_pause`). Does
    nothing if there is none."""
    if not client.nodes:
        return RefetchResult()
    create_tables(settings.paths, (STORE_PRESENCE,))
    now = dt.datetime.now(dt.UTC)
    # Of audits, which are most rows, only those of envelopes that may still be in the sample.
    recent = pc.field("asked_at") >= now - dt.timedelta(milliseconds=settings.store.audit.within_ms)
    answers = dataset_of(open_table(settings.paths, STORE_PRESENCE)).to_table(
        columns=["node", "purpose", *MESSAGE, "attempt", "detail", "message_hash", "outcome", "asked_at"],
        filter=(pc.field("purpose") != "audit") | recent,
    )
    pauses = {node: find_pause(answers.filter(pc.equal(answers["node"], node)), now) for node in client.nodes}
    paused = {node: pause for node, pause in pauses.items() if pause is not None}
    if len(paused) == len(pauses):
        since, until = max(each.since for each in paused.values()), min(each.until for each in paused.values())
        return RefetchResult(pause=Pause(since, until))
    if paused:
        client = client.without(paused)
    refetches = answers.filter(pc.is_in(answers["purpose"], value_set=pa.array(["refetch", "range"])))
    every = find_open_requests(settings, refetches)
    requests = [request for request in every if request.retrieval_hint]
    unhinted = [request for request in every if not request.retrieval_hint]
    requests += find_sent_and_not_seen(settings, refetches)[: MAX_REQUESTS - len(requests)]
    written = fetch_by_hash(settings, client, write_back, requests) if requests else 0
    sets = find_open_sets(settings, answers, MAX_REQUESTS)
    written += fetch_by_range(settings, client, write_back, [*unhinted, *sets])
    gaps = find_open_gaps(settings, answers.filter(pc.equal(answers["purpose"], "gap")).to_pylist())
    for gap in gaps:
        written += fill_gap(settings, client, write_back, gap)
    audited = answers.filter(pc.equal(answers["purpose"], "audit"))["message_hash"]
    sample = choose_sample(settings, dt.datetime.now(dt.UTC), audited)  # the queries before may have taken minutes
    _audit_sample(settings, client, sample)
    return RefetchResult(len(requests) + len(unhinted) + len(sets), len(gaps), written, len(sample))


def find_pause(answers: pa.Table, now: dt.datetime) -> Pause | None:
    """Whether a store node is left alone at ``now`` (wall clock), by its ``answers``: rows of ``store_presence``.

    After :data:`PATIENCE` the pause is as long as every query has failed, so the distance between two rounds doubles,
    up to :data:`MAX_PAUSE`. The table is all the memory that this needs: a job for cron pauses likewise."""
    has_failed = pc.and_(
        pc.equal(answers["outcome"], "error"), pc.not_equal(answers["detail"].fill_null(""), ANOTHER_MESSAGE)
    )
    asked = in_our_time(answers.select(["asked_at"]))["asked_at"]
    answered_at, failures = pc.max(asked.filter(pc.invert(has_failed))), asked.filter(has_failed)
    if answered_at.is_valid:
        failures = failures.filter(pc.greater(failures, answered_at))
    first, last = (pc.min_max(failures)[name].as_py() for name in ("min", "max"))
    if first is None or last - first < PATIENCE or now < last:  # such a time is one of a clock that was set back since
        return None
    until = last + min(last - first, MAX_PAUSE)
    return Pause(first, until) if now < until else None


def refetch_once(settings: Settings, connect: Callable[[Settings], StoreClient]) -> RefetchResult:
    """Query store nodes for all open requests and write the returned envelopes to the envelopes topic. ``connect``
    creates the client of the configured store nodes, which is closed at the end.

    Raises ``EnvironmentFault`` if Kafka does not accept them; nothing is then recorded as queried."""
    with closing(connect(settings)) as client, closing(KafkaWriter(settings)) as kafka:
        return refetch(settings, client, kafka.write_back)


class KafkaWriter:
    """Writes what store nodes returned to Kafka. The first entry opens a producer, which serves all pages of a run:
    opening one waits several times for the brokers, and most runs write nothing."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._producer: EnvelopeProducer | None = None

    def write_back(self, entries: Sequence[StoreEntry]) -> None:
        """Write entries (with data) to Kafka as records with ``source=store``; returns when all replicas have them. An
        entry too large for Kafka would fail again at every run, so it is skipped and logged."""
        topic = self._settings.kafka.topics.envelopes
        left = [
            envelope_record(topic, entry.message, entry.pubsub_topic, Source.STORE)
            for entry in entries
            if entry.message is not None and entry.pubsub_topic is not None
        ]
        while left:
            if self._producer is None:
                self._producer = EnvelopeProducer(self._settings.kafka.clients().producer)
            reasons = SafeWriter(self._producer, threading.Event()).write_once(left)
            failed = [(record, reason) for record, reason in zip(left, reasons, strict=True) if reason is not None]
            left = [record for record, reason in failed if reason is not FailureReason.TOO_LARGE]
            sizes = [len(record.value) for record, reason in failed if reason is FailureReason.TOO_LARGE]
            if sizes:  # the others failed with them, and fit
                _log.warning(
                    "%d envelopes from store nodes, of up to %d bytes, are too large for %s (max.message.bytes) and"
                    " were left out",
                    *(len(sizes), max(sizes), topic),
                )
            elif left:
                raise EnvironmentFault(
                    f"Kafka refused {len(left)} of {len(entries)} fetched envelopes ({failed[0][1].value}).",
                    "Check that the brokers and the topic are there; the next run asks again.",
                )

    def close(self) -> None:
        """Close the producer, if one was opened."""
        if self._producer is not None:
            self._producer.close()


def _audit_sample(settings: Settings, client: StoreClient, sample: Sequence[Audited]) -> None:
    """Record which node holds which envelopes of a sample. Nothing is fetched, because all of them are here."""
    if not sample:
        return
    answers = client.look_up([hash_ for one in sample for hash_ in one.hashes], include_data=False)
    rows = [
        make_row_of_hash(
            answer,
            next((hash_ for hash_ in one.hashes if answer.has(hash_)), one.message_hash),
            "audit",
            **{name: getattr(one, name) for name in MESSAGE},
        )
        | {"message_hash": one.message_hash}
        for answer in answers
        for one in sample
    ]
    append_rows(settings.paths, STORE_PRESENCE, as_arrow(rows, STORE_PRESENCE))
