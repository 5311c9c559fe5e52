"""Fills gaps of the envelopes topic: asks store nodes for the channels' envelopes in the time range of a gap."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from reliable_channel.config import Settings
from reliable_channel.evidence.arrivals import drop_known
from reliable_channel.evidence.presence import make_row
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.read import open_table, rows_of, select
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ENVELOPES, SOURCE_GAPS, STORE_PRESENCE, micros
from reliable_channel.transport.store.client import StoreClient
from reliable_channel.transport.store.model import StoreEntry, StoreQuery
from reliable_channel.transport.store.rest_node import StoreNodeError

GAP_MARGIN = dt.timedelta(seconds=30)
"""The margin added at both ends of a gap's time range, because senders' clocks differ from ours."""

WriteBack = Callable[[Sequence[StoreEntry]], None]
"""Writes entries (with data) to the envelopes topic as ``source=store``; returns when all replicas have them."""


def find_open_gaps(settings: Settings, answers: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the gaps with a known start that are still to be asked for, with the content topics of their partition's
    records. ``answers``: the rows of ``store_presence`` about gaps. A gap is asked for again while for one of its
    topics every node has failed."""
    failed: dict[tuple[str, str | None, str | None], bool] = {}
    for row in answers:
        key = row["detail"], row["pubsub_topic"], row["content_topic"]
        failed[key] = failed.get(key, True) and row["outcome"] == "error"
    again = {name for (name, _, _), all_failed in failed.items() if all_failed}
    done = {name for name, _, _ in failed} - again
    gaps = rows_of(open_table(settings.paths, SOURCE_GAPS))
    # The bridge fills its own gaps; and a gap without a start has no range to query.
    gaps = [g for g in gaps if g["kafka_partition"] >= 0 and g["name"] not in done]
    gaps = [g for g in gaps if g["from_time"] is not None and g["to_time"] is not None]
    if not gaps:
        return []
    topics = select(
        "SELECT DISTINCT kafka_topic, kafka_partition, pubsub_topic, content_topic FROM envelopes",
        envelopes=open_table(settings.paths, ENVELOPES),
    )
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


def fill_gap(settings: Settings, client: StoreClient, write_back: WriteBack, gap: dict[str, Any]) -> int:
    """Query every node for the channels' envelopes in the time range of a gap; write back those that are missing
    here."""
    written = 0
    rows: list[dict[str, Any]] = []
    for pubsub_topic, content_topic in gap["topics"]:
        query = StoreQuery(
            pubsub_topic=pubsub_topic,
            content_topics=(content_topic,),
            start_time_ns=to_ns(gap["from_time"], -GAP_MARGIN),
            end_time_ns=to_ns(gap["to_time"], GAP_MARGIN),
        )
        known: set[bytes] = set()
        outcomes: dict[str, str] = {}
        for node, page in client.walk_each(query):
            if isinstance(page, StoreNodeError):
                outcomes[node] = "error"
                continue
            outcomes[node] = "present"  # the node answered, also if it had nothing
            new = [e for e in page.entries if e.message is not None and e.message_hash not in known]
            known |= {entry.message_hash for entry in new}
            missing = drop_known(settings, new)
            write_back(missing)
            written += len(missing)
        rows += [
            make_row(node, None, outcome, "gap", gap["name"], pubsub_topic=pubsub_topic, content_topic=content_topic)
            for node, outcome in outcomes.items()
        ]
    if not rows:  # a gap without channels of ours would be looked at in every run
        rows.append(make_row(client.nodes[0], None, "absent", "gap", gap["name"]))
    append_rows(settings.paths, STORE_PRESENCE, as_arrow(rows, STORE_PRESENCE))
    return written


def to_ns(moment: dt.datetime, later: dt.timedelta) -> int:
    """Return ``moment`` + ``later`` as Unix ns, limited to times that stores accept."""
    return min(max(0, (micros(moment) + later // dt.timedelta(microseconds=1)) * 1000), 2**63 - 1)
