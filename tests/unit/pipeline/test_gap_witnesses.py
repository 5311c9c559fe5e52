"""A store that lacks what another bridge saw of a gap has not filled it; what a store need not have proves nothing."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from reliable_channel.config import PathSettings, load
from reliable_channel.evidence.intake import EvidenceRecord, read_position, write
from reliable_channel.lake import gap_witnesses, tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.gap_witnesses import count_lacking
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import ENVELOPES, SIGHTINGS, Table
from reliable_channel.pipeline.verdict.gaps import read_open_gaps
from reliable_channel.transport.base import Source
from reliable_channel.transport.bridge_state import BridgeGap
from reliable_channel.transport.evidence import gap_record, sightings_record

BEGIN_MS = 1_767_225_600_000
SHARD, TOPIC = "/waku/2/rs/1/0", "/reliable-channel/1/gap/proto"
GAP = BridgeGap(BEGIN_MS + 20_000, BEGIN_MS + 50_000, "bridge_restart")


def envelope(number: int, sent_s: float | None = 30.0, **more: Any) -> dict[str, Any]:
    """An envelope that another bridge wrote to Kafka in the gap."""
    return {
        "kafka_topic": "waku.envelopes",
        "kafka_partition": 0,
        "kafka_offset": number,
        "record_time": (BEGIN_MS + 30_000) * 1_000,
        "event_time": (BEGIN_MS + 30_000) * 1_000,
        "ingest_time": (BEGIN_MS + 30_000) * 1_000,
        "source": "relay",
        "pubsub_topic": SHARD,
        "content_topic": TOPIC,
        "message_hash": bytes([number]) * 32,
        "sender_timestamp_ns": None if sent_s is None else int((BEGIN_MS + sent_s * 1_000) * 1_000_000),
        "ephemeral": False,
        "kind": "sds",
        **more,
    }


class Observed:
    """What bridges and ingest wrote: two bridges, of which `north` has a gap that its store filled."""

    def __init__(self, paths: PathSettings) -> None:
        self.paths = paths
        read_position(paths, "waku.evidence", 0)
        self.records: list[bytes] = []
        self.envelopes: list[dict[str, Any]] = []

    def put_gap(
        self, status: str = "filled", answer: str = "complete", topic: str | None = None, vantage: str = "north"
    ) -> None:
        _, value = gap_record(GAP, status, "n", [(SHARD, topic)], GAP.to_ms, 0, {"store": answer}, vantage)
        self.records.append(value)

    def see(
        self, number: int, vantage: str = "south", source: Source = Source.RELAY, at_s: float = 31, shard: str = SHARD
    ) -> None:
        at_ms = BEGIN_MS + int(at_s * 1_000)
        self.records.append(sightings_record(vantage, "n", source, shard, [bytes([number]) * 32], at_ms)[1])

    def write(self) -> None:
        records = [EvidenceRecord(0, number, value) for number, value in enumerate(self.records)]
        write(self.paths, "waku.evidence", records, "waku.envelopes")
        append(self.paths, tables.ENVELOPES, self.envelopes)
        self.envelopes = []

    def gaps(self) -> list[str | None]:
        """The bridges with gaps that count."""
        self.write()
        return [gap.vantage for gap in read_open_gaps(self.paths)]


def append(paths: PathSettings, table: Table, rows: list[dict[str, Any]]) -> None:
    create_tables(paths, (table,))
    append_rows(paths, table, as_arrow(rows, table))


@pytest.fixture
def observed(tmp_path: Path) -> Observed:
    return Observed(load("local").with_run_dir(tmp_path).paths)


def test_a_gap_is_not_filled_by_a_store_that_lacks_what_another_bridge_saw_in_it(observed: Observed) -> None:
    observed.put_gap()
    observed.envelopes.append(envelope(1))
    observed.see(1)
    assert observed.gaps() == ["north"]


@pytest.mark.parametrize("source", [Source.STORE, Source.RELAY, Source.FILTER, Source.SENDER])
def test_what_the_bridge_has_itself_by_whatever_way_does_not_contradict_its_store(
    observed: Observed, source: Source
) -> None:
    observed.put_gap()
    observed.envelopes.append(envelope(1))
    observed.see(1)
    observed.see(1, "north", source, at_s=60)
    assert observed.gaps() == []


@pytest.mark.parametrize(
    "sent",
    [
        envelope(1, ephemeral=True),
        envelope(1, kind="plain"),
        envelope(1, sent_s=None),
        envelope(1, sent_s=19.9),
        envelope(1, sent_s=50.1),
        envelope(1, sent_s=20.5),
        envelope(1, sent_s=41.5),
        envelope(1, sender_timestamp_ns=2**63 - 1),
        envelope(1, sender_timestamp_ns=-(2**63)),
        envelope(2),
    ],
    ids=["ephemeral", "plain", "no time", "before", "after", "old", "early", "greatest", "least", "unknown"],
)
def test_what_a_store_need_not_have_does_not_contradict_it(observed: Observed, sent: dict[str, Any]) -> None:
    observed.put_gap()
    observed.envelopes.append(sent)
    observed.see(1)
    assert observed.gaps() == []


@pytest.mark.parametrize(
    "sighting",
    [
        {"source": Source.STORE},
        {"source": Source.SENDER},
        {"at_s": 19},
        {"at_s": 51},
        {"shard": "/waku/2/rs/1/1"},
        {"vantage": "north", "at_s": 31},
    ],
    ids=["store", "sender", "before", "after", "shard", "own"],
)
def test_only_what_another_node_received_in_the_gap_is_a_witness(observed: Observed, sighting: dict[str, Any]) -> None:
    observed.put_gap()
    observed.envelopes.append(envelope(1))
    observed.see(1, **sighting)
    observed.see(7, at_s=31)  # of nothing that came
    assert observed.gaps() == []


def test_a_store_answers_only_for_the_content_topics_that_it_was_queried_for(observed: Observed) -> None:
    observed.put_gap(topic="/reliable-channel/1/other/proto")
    observed.envelopes.append(envelope(1))
    observed.see(1)
    assert observed.gaps() == []
    observed.put_gap(topic=TOPIC)
    assert observed.gaps() == ["north"]


@pytest.mark.parametrize("answer", ["known_content_topics", "complete_unverified"])
def test_an_answer_that_cannot_be_compared_by_hash_is_not_contradicted(observed: Observed, answer: str) -> None:
    observed.put_gap(answer=answer)
    observed.envelopes.append(envelope(1))
    observed.see(1)
    assert observed.gaps() == []


def test_an_unfilled_gap_counts_once_and_a_bridge_without_a_name_is_not_compared(observed: Observed) -> None:
    observed.envelopes.append(envelope(1))
    observed.see(1)
    observed.put_gap("unfilled")
    observed.put_gap(vantage="")
    assert observed.gaps() == ["north"]


def test_the_order_in_which_evidence_comes_does_not_matter(tmp_path: Path) -> None:
    results = set()
    for seed in range(4):
        observed = Observed(load("local").with_run_dir(tmp_path / str(seed)).paths)
        draw = random.Random(seed)
        observed.put_gap()
        for number in (1, 2, 3):
            observed.see(number)
        observed.see(1, "north", Source.STORE, at_s=60)
        observed.see(2, "north", Source.STORE, at_s=61)
        draw.shuffle(observed.records)
        pending, observed.records = observed.records, []
        numbers = draw.sample((1, 2, 3), 3)
        for offset, value in enumerate(pending):
            write(observed.paths, "waku.evidence", [EvidenceRecord(0, offset, value)], "waku.envelopes")
            if numbers and draw.random() < 0.5:
                append(observed.paths, tables.ENVELOPES, [envelope(numbers.pop())])
        append(observed.paths, tables.ENVELOPES, [envelope(number) for number in numbers])
        results.add(tuple(gap.vantage for gap in read_open_gaps(observed.paths)))
    assert results == {("north",)}


@pytest.mark.parametrize("stores", [None, [], {"s": 1}, {"s": "complete"}])
@pytest.mark.parametrize("topics", [None, "x", [1, None, {}], [""], {"a": 1}])
def test_gap_records_of_strangers_are_read_as_far_as_they_can_be(
    observed: Observed, stores: object, topics: object
) -> None:
    said = {"kind": "gap", "name": "g", "status": "filled", "from_ms": 1, "to_ms": 2, "vantage": "v", "at_ms": 3}
    said |= {"stores": stores, "pubsub_topics": topics, "content_topics": topics}
    observed.records.append(json.dumps(said).encode())
    assert observed.gaps() == []


@pytest.mark.parametrize("rows_at_once", [3, 2_000_000])
def test_all_gaps_at_once_count_what_each_gap_alone_would(rows_at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gap_witnesses, "ROWS_AT_ONCE", rows_at_once)
    monkeypatch.setattr(gap_witnesses, "_SPANS", 3)
    lacking = 0
    for seed in range(50):
        draw = random.Random(seed)
        gaps, sightings, envelopes = some_gaps(draw), some_sightings(draw), some_envelopes(draw)
        rows = {SIGHTINGS: as_arrow(sightings, SIGHTINGS), ENVELOPES: as_arrow(envelopes, ENVELOPES)}

        def read(
            table: Table,
            columns: Sequence[str],
            where: pc.Expression | None = None,
            rows: dict[Table, pa.Table] = rows,
        ) -> pa.Table:
            return ds.dataset(rows[table]).to_table(columns=list(columns), filter=where)

        each = {gap["name"]: count_alone(gap, sightings, envelopes) for gap in gaps}
        assert count_lacking(gaps, read) == {name: count for name, count in each.items() if count}, seed
        lacking += sum(each.values())
    assert lacking > 10


def at(second: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(BEGIN_MS / 1_000 + second, dt.UTC)


def some_hash(draw: random.Random) -> bytes:
    return bytes([draw.choice([0, 1, 127, 128, 255]), draw.randrange(8)])


def some_gaps(draw: random.Random) -> list[dict[str, Any]]:
    spans = [sorted(draw.choices(range(60), k=2)) for _ in range(8)]
    return [
        {
            "name": f"{number}",
            "status": draw.choice(["filled", "filled", "filled", "open"]),
            "vantage": draw.choice(["north", "south", "south", None]),
            "from_time": at(since),
            "to_time": at(until),
            "pubsub_topics": draw.choice([None, [], *[["/1"], ["/1", "/2"]] * 3]),
            "content_topics": draw.choice([None, None, [], ["/a"], ["/a", "/b"]]),
        }
        for number, (since, until) in enumerate(spans)
    ]


def some_sightings(draw: random.Random) -> list[dict[str, Any]]:
    return [
        {
            "message_hash": draw.choice([None, *[some_hash(draw)] * 9]),
            "vantage": draw.choice(["north", "south", *["west"] * 8]),
            "node": "n",
            "source": draw.choice(["relay", "filter", "relay", "filter", "store", "sender", None]),
            "pubsub_topic": draw.choice(["/1", "/1", "/2", None]),
            "seen_at": draw.choice([None, *[at(draw.randrange(60))] * 9]),
        }
        for _ in range(draw.randrange(60))
    ]


def some_envelopes(draw: random.Random) -> list[dict[str, Any]]:
    return [
        envelope(
            number,
            draw.choice([None, *[draw.randrange(60)] * 5]),
            message_hash=draw.choice([None, *[some_hash(draw)] * 9]),
            content_topic=draw.choice(["/a", "/b", None]),
            ephemeral=draw.choice([False, False, False, True, None]),
            kind=draw.choice(["sds", "sds", "sds", "plain"]),
        )
        for number in range(draw.randrange(40))
    ]


def count_alone(gap: dict[str, Any], sightings: list[dict[str, Any]], envelopes: list[dict[str, Any]]) -> int:
    """What :func:`count_lacking` says of one gap, as its documentation says it."""
    if gap["status"] != "filled" or not gap["vantage"] or not gap["pubsub_topics"]:
        return 0
    begin, end = gap["from_time"], gap["to_time"]
    own = {seen["message_hash"] for seen in sightings if seen["vantage"] == gap["vantage"]}
    return len(
        {
            seen["message_hash"]
            for seen in sightings
            for sent in envelopes
            if seen["vantage"] != gap["vantage"] and seen["source"] in ("relay", "filter")
            if seen["message_hash"] is not None and seen["message_hash"] not in own
            if seen["seen_at"] is not None and begin <= seen["seen_at"] <= end
            if seen["pubsub_topic"] in gap["pubsub_topics"]
            if sent["message_hash"] == seen["message_hash"] and sent["kind"] == "sds" and sent["ephemeral"] is False
            if gap["content_topics"] is None or sent["content_topic"] in gap["content_topics"]
            if sent["sender_timestamp_ns"] is not None
            if begin <= (sent_at := at(sent["sender_timestamp_ns"] / 1e9 - BEGIN_MS / 1_000)) <= end
            if abs(seen["seen_at"] - sent_at) <= dt.timedelta(seconds=10)
        }
    )
