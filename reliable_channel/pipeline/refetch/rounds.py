"""Open requests and source gaps to store nodes, and what they give back to Kafka: the loop closes.

``refetch_requests`` → store nodes (by hash) and ``source_gaps`` → store nodes (by time range) → ``waku.envelopes`` with
``source=store``; per node what it had → ``store_presence``, so that disagreeing stores are visible. A sample of what
was seen is asked for as well (:mod:`~reliable_channel.pipeline.refetch.audit`). A batch job without Spark: it waits for
answers. At least once: asked again after a crash, what comes twice is de-duplicated behind Kafka.
"""

from __future__ import annotations

import base64
import datetime as dt
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from reliable_channel.config import Settings
from reliable_channel.pipeline.refetch.audit import Audited, to_audit
from reliable_channel.pipeline.storage.arrow_files import dataset_of, rows_of
from reliable_channel.pipeline.storage.arrow_schema import as_arrow
from reliable_channel.pipeline.storage.ddl import create_tables
from reliable_channel.pipeline.storage.io import append_rows, open_table
from reliable_channel.pipeline.tables import (
    ENVELOPES,
    REFETCH_REQUESTS,
    SEGMENTS,
    SOURCE_GAPS,
    STORE_PRESENCE,
)
from reliable_channel.store.client import NodeAnswer, StoreClient
from reliable_channel.store.model import StoreEntry, StoreQuery, is_message_hash
from reliable_channel.store.rest_node import StoreNodeError

MAX_REQUESTS = 5_000
"""Requests asked in one run; the rest is asked in the next."""
GAP_MARGIN = dt.timedelta(seconds=30)
"""A gap is asked for wider by this at both ends: senders' clocks differ from ours."""

WriteBack = Callable[[Sequence[StoreEntry]], None]
"""Writes entries (with data) to the envelopes topic as ``source=store``; returns when all replicas have them."""


@dataclass(frozen=True, slots=True)
class Request:
    """One missing message to ask for; ``attempt`` is the newest that the ack job asked for."""

    pubsub_topic: str
    content_topic: str
    channel_id: str
    sds_id: str
    retrieval_hint: bytes
    attempt: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run did: questions by hash, gaps asked for, envelopes written back, envelopes audited."""

    requests: int = 0
    gaps: int = 0
    written: int = 0
    audited: int = 0


def refetch(settings: Settings, client: StoreClient, write_back: WriteBack) -> Outcome:
    """Ask for everything that is open, once. Does nothing when no store node is configured."""
    if not client.nodes:
        return Outcome()
    create_tables(settings.paths, (STORE_PRESENCE,))
    asked = dataset_of(open_table(settings.paths, STORE_PRESENCE)).to_table(
        columns=["purpose", "channel_id", "sds_id", "attempt", "detail", "message_hash"]
    )
    requests = open_requests(settings, asked.filter(pc.equal(asked["purpose"], "refetch")).to_pylist())
    written = _by_hash(settings, client, write_back, requests) if requests else 0
    done = {row["detail"] for row in asked.filter(pc.equal(asked["purpose"], "gap")).to_pylist()}
    gaps = _gaps(settings, done)
    for gap in gaps:
        written += _fill(settings, client, write_back, gap)
    audited = set(asked.filter(pc.equal(asked["purpose"], "audit"))["message_hash"].to_pylist())
    sample = to_audit(settings, dt.datetime.now(dt.UTC), audited)
    _audit(settings, client, sample)
    return Outcome(len(requests), len(gaps), written, len(sample))


def open_requests(settings: Settings, asked: Iterable[dict[str, Any]]) -> list[Request]:
    """The newest attempt for every message that is still not here, was not asked for yet and has a hint that is a
    message hash. Other hints are other people's words, which no store knows."""
    rows = rows_of(open_table(settings.paths, REFETCH_REQUESTS))
    newest: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["pubsub_topic"], row["content_topic"], row["channel_id"], row["sds_id"])
        if is_message_hash(row["retrieval_hint"]) and row["attempt"] > newest.get(key, {"attempt": 0})["attempt"]:
            newest[key] = row
    done = {(row["channel_id"], row["sds_id"], row["attempt"]) for row in asked}
    wanted = {k: r for k, r in newest.items() if (k[2], k[3], r["attempt"]) not in done}
    here = _arrived(settings, {key[3] for key in wanted})
    found = [Request(*k, r["retrieval_hint"], r["attempt"]) for k, r in wanted.items() if k not in here]
    return sorted(found, key=lambda r: (r.attempt, r.sds_id))[:MAX_REQUESTS]


def _arrived(settings: Settings, sds_ids: set[str]) -> set[tuple[str, str, str, str]]:
    """Which of these messages came meanwhile, by themselves or from a store."""
    columns = ["pubsub_topic", "content_topic", "channel_id", "sds_id"]
    if not sds_ids:
        return set()
    data = dataset_of(open_table(settings.paths, SEGMENTS))
    rows = data.to_table(columns=columns, filter=pc.field("sds_id").isin(sorted(sds_ids))).to_pylist()
    return {(r["pubsub_topic"], r["content_topic"], r["channel_id"], r["sds_id"]) for r in rows}


def _by_hash(settings: Settings, client: StoreClient, write_back: WriteBack, requests: list[Request]) -> int:
    answers = client.look_up([request.retrieval_hint for request in requests])
    wanted = {request.retrieval_hint for request in requests}
    found = {e.message_hash: e for answer in answers for e in answer.entries if e.message is not None}
    entries = [entry for hash_, entry in found.items() if hash_ in wanted]
    write_back(entries)
    rows = [
        _said(
            answer,
            request.retrieval_hint,
            "refetch",
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


def _audit(settings: Settings, client: StoreClient, sample: Sequence[Audited]) -> None:
    """Write down which node holds what of a sample; nothing of it is fetched, it is all here."""
    if not sample:
        return
    answers = client.look_up([one.message_hash for one in sample], include_data=False)
    rows = [
        _said(
            answer,
            one.message_hash,
            "audit",
            pubsub_topic=one.pubsub_topic,
            content_topic=one.content_topic,
            channel_id=one.channel_id,
            sds_id=one.sds_id,
        )
        for answer in answers
        for one in sample
    ]
    append_rows(settings.paths, STORE_PRESENCE, as_arrow(rows, STORE_PRESENCE))


def _said(answer: NodeAnswer, message_hash: bytes, purpose: str, **more: Any) -> dict[str, Any]:
    """What a node said of one hash."""
    outcome = {True: "present", False: "absent", None: "error"}[answer.has(message_hash)]
    fault = answer.error.fault.value if answer.error is not None else None
    return _presence(answer.node, message_hash, outcome, purpose, fault, **more)


def _gaps(settings: Settings, done: Collection[str]) -> list[dict[str, Any]]:
    """The gaps with a known beginning that are not ``done``, with the content topics whose records their partition
    holds."""
    gaps = rows_of(open_table(settings.paths, SOURCE_GAPS))
    # The bridge fills its own gaps; and a gap without a beginning has no range to ask for.
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
            and settings.channels.topic_for(t["content_topic"], t["pubsub_topic"]) is not None
        )
    return gaps


def _fill(settings: Settings, client: StoreClient, write_back: WriteBack, gap: dict[str, Any]) -> int:
    """Ask every node for what its channels said in the time of a gap; what is not here is written back."""
    written = 0
    rows: list[dict[str, Any]] = []
    for pubsub_topic, content_topic in gap["topics"]:
        query = StoreQuery(
            pubsub_topic=pubsub_topic,
            content_topics=(content_topic,),
            start_time_ns=_ns(gap["from_time"] - GAP_MARGIN),
            end_time_ns=_ns(gap["to_time"] + GAP_MARGIN),
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
    data = dataset_of(open_table(settings.paths, ENVELOPES))
    among = pc.field("message_hash").isin([entry.message_hash for entry in entries])
    here = set(data.to_table(columns=["message_hash"], filter=among)["message_hash"].to_pylist())
    return [entry for entry in entries if entry.message_hash not in here]


def _presence(
    node: str, message_hash: bytes | None, outcome: str, purpose: str, detail: str | None, **more: Any
) -> dict[str, Any]:
    return {
        "node": node,
        "message_hash": None if message_hash is None else base64.b64encode(message_hash).decode("ascii"),
        "outcome": outcome,
        "purpose": purpose,
        "detail": detail,
        "asked_at": time.time_ns() // 1000,
        **more,
    }


def _ns(moment: dt.datetime) -> int:
    return (moment - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(microseconds=1) * 1000
