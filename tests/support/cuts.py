"""Runs the functions of the reassembly and ack jobs without Spark, over rows cut into micro-batches anywhere."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import Phase
from hypothesis import strategies as st

from reliable_channel.config import load
from reliable_channel.core.sds import SdsChannel, SdsParameters
from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.hashing import sds_message_id, sha256
from reliable_channel.lake.open_hashes import HashDue, OpenHashes
from reliable_channel.lake.schema import ARROW_TYPES
from reliable_channel.lake.tables import micros
from reliable_channel.pipeline.ack.records import InputRow
from reliable_channel.pipeline.guarded import FailedRows
from reliable_channel.pipeline.reassembly import combiner, memory
from reliable_channel.pipeline.reassembly import stream as reassembly
from reliable_channel.pipeline.reassembly.already_reported import drop_covered
from reliable_channel.pipeline.reassembly.set_results import ReportedSet
from reliable_channel.pipeline.result_files import RESULTS, ResultFiles, Sorted, unpack

PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
START = 1_767_225_600_000
PLACE = ("waku.envelopes", 0)
CONFIG = SegmentationConfig(
    segment_size_bytes=64,
    enable_reed_solomon=True,
    parity_rate=0.5,
    set_timeout_ms=60_000,
    max_set_lifetime_ms=600_000,
)
COMBINER_INPUT = pa.schema([(name, ARROW_TYPES[type_]) for name, type_ in combiner.INPUT_COLUMNS.items()])


class FakeState:
    """What the stateful function needs of ``GroupState``."""

    def __init__(self) -> None:
        self.value: tuple[int, bytes] | None = None

    @property
    def exists(self) -> bool:
        return self.value is not None

    @property
    def get(self) -> tuple[int, bytes]:
        assert self.value is not None
        return self.value

    def update(self, value: tuple[int, bytes]) -> None:
        self.value = value

    def remove(self) -> None:
        self.value = None


class Reassembly:
    """The reassembly query without Spark: one call per micro-batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
        self.settings = load("local", paths={"run_dir": place}).model_copy(update={"segmentation": CONFIG})
        for name in ("reassembled_messages", "ordered_sds_messages", "channel_events"):
            Path(self.settings.paths.table(name)).mkdir(parents=True, exist_ok=True)
        self.states: dict[bytes | None, FakeState] = {}
        self.open = OpenHashes()
        self.rows: list[tuple[str, dict[str, Any]]] = []
        self.incomplete: list[dict[str, Any]] = []
        self.failed_rows = 0
        self._changes: list[HashDue] = []
        self._monkeypatch = monkeypatch

    def batch(self, rows: list[dict[str, Any]]) -> None:
        before, self._changes = self.open, []
        self._monkeypatch.setattr(combiner, "read_open_before", lambda paths: before)
        known = self._read_completed()
        self._monkeypatch.setattr(memory, "find_completed", lambda paths, hashes, since, places: known)
        batches = [pa.RecordBatch.from_pylist(rows, schema=COMBINER_INPUT)] if rows else []
        out = [b.to_pandas() for b in combiner.Combiner(self.settings)(iter(batches))]
        if not out:
            return
        frame = pd.concat(out)
        update = reassembly.KeyedSets(CONFIG, lambda row: row)
        for key, group in frame.groupby(combiner.HASH, sort=False, dropna=False):
            key = None if pd.isna(key) else key
            state = self.states.setdefault(key, FakeState())
            for result in update((key,), iter([group]), state):  # type: ignore[arg-type]
                assert {*result["kind"]} == {RESULTS}
                for blob in result["results"]:
                    self._take(unpack(blob))
        self.open = before.apply(self._changes)

    def _take(self, results: Sorted) -> None:
        """As the last task does: the tables' rows, whoever wrote them."""
        with ResultFiles(self.settings.paths) as files:
            files.add_results(results)
            written = files.finish()
        for file in written:
            read = pq.read_table(Path(self.settings.paths.table(file.table)) / file.path)
            self.rows += [(file.table, row) for row in read.to_pylist()]
        for result in files.for_driver:
            if isinstance(result, HashDue):
                self._changes.append(result)
            elif isinstance(result, FailedRows):
                self.failed_rows += result.rows
            else:
                assert isinstance(result, ReportedSet)
                self.incomplete.append(result.fields)

    def _read_completed(self) -> dict[bytes, list[memory.Done]]:
        """What ``reassembled_messages`` says after the micro-batches so far."""
        by_hash: dict[bytes, list[memory.Done]] = {}
        for row in [row for table, row in self.rows if table == "reassembled_messages"]:
            by_hash.setdefault(row["entire_message_hash"], []).append(memory.parse_done(row))
        return by_hash

    def read_rebuilt(self) -> list[dict[str, Any]]:
        """The rows of ``reassembled_messages`` in the form of a reported set."""
        rows = [row for table, row in self.rows if table == "reassembled_messages"]
        return [{**row, "event_time": micros(row["event_time"])} for row in rows]

    def tables(self) -> dict[str, list[str]]:
        """What the tables would hold."""
        by_table: dict[str, list[str]] = {}
        for table, row in self.rows:
            by_table.setdefault(table, []).append(repr(sorted(row.items())))
        for fields in drop_covered(self.incomplete, self.read_rebuilt()):
            by_table.setdefault("incomplete", []).append(repr(sorted(fields.items())))
        return {kind: sorted(rows) for kind, rows in by_table.items()}


@st.composite
def conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Segments of a few sends, lost, repeated and out of order, and ticks among them. A sender may send a payload again
    while segments of the send before are still arriving, also in another wire family; ids may be of a kind that cannot
    be recomputed."""
    payloads = draw(st.lists(st.binary(min_size=65, max_size=400), min_size=1, max_size=3, unique=True))
    possible = [(payload, *who) for payload in payloads for who in (("alice", "spec"), ("bob", "spec"), ("bob", "nim"))]
    arrivals: list[tuple[int, dict[str, Any]]] = []
    lamport = START
    opaque = draw(st.booleans())
    for number, (payload, sender, family) in enumerate(
        draw(st.lists(st.sampled_from(possible), min_size=1, max_size=7))
    ):
        sent_at = START + number * draw(st.integers(0, 40_000))
        here: list[tuple[int, dict[str, Any]]] = []
        lamport = add_send(draw, payload, sender, lamport, sent_at, [0, 1, 1, 1, 2], here, opaque)
        arrivals += [(at, {**row, "family": family}) for at, row in here]
    for _ in range(draw(st.integers(0, 4))):
        at = START + draw(st.integers(0, 300_000))
        arrivals.append((at, {"kind": "tick", "event_us": at * 1000}))
    return as_rows(arrivals)


def add_send(
    draw: st.DrawFn,
    payload: bytes,
    sender: str,
    lamport: int,
    sent_at: int,
    copies: list[int],
    arrivals: list[tuple[int, dict[str, Any]]],
    opaque: bool = False,
) -> int:
    """Put the arrivals of one send into ``arrivals``; the Lamport timestamp the next send may have."""
    contents = contents_for(payload, CONFIG)
    for ordinal, content in enumerate(contents):
        sds_id = f"{lamport + ordinal}" if opaque else sds_message_id(sender, lamport, content)
        for _ in range(draw(st.sampled_from(copies))):
            at = sent_at + draw(st.integers(0, 50_000))
            arrivals.append(
                (at, {**segment_row(sender, sds_id, lamport + ordinal, content, at, payload), "send": lamport})
            )
    return lamport + len(contents) + draw(st.integers(0, 3))


def as_rows(arrivals: list[tuple[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """In order of arrival, with Kafka coordinates, and a tick at the end."""
    ordered = [row for _, row in sorted(arrivals, key=lambda pair: pair[0])]
    ordered.append({"kind": "tick", "event_us": (START + 10_000_000) * 1000})
    place = {"kafka_topic": PLACE[0], "kafka_partition": PLACE[1]}
    return [{**row, **place, "kafka_offset": offset} for offset, row in enumerate(ordered)]


def segment_row(sender: str, sds_id: str, lamport: int, content: bytes, at: int, payload: bytes) -> dict[str, Any]:
    from reliable_channel.core.wire.hashing import keccak256

    return {
        "entire_message_hash": keccak256(payload),
        "kind": "segment",
        "event_us": at * 1000,
        "pubsub_topic": "p",
        "content_topic": "c",
        "channel_id": "talk",
        "family": "spec",
        "sender_id": sender,
        "sds_id": sds_id,
        "lamport_timestamp": lamport,
        "segment_dialect": "v0.1",
        "content": content,
    }


def cut(rows: list[Any], cuts: list[int]) -> Iterator[list[Any]]:
    """``rows`` in pieces that end at ``cuts``."""
    edges = sorted({0, len(rows), *(c % (len(rows) + 1) for c in cuts)})
    for start, end in itertools.pairwise(edges):
        yield rows[start:end]


def reassemble(rows: list[dict[str, Any]], cuts: list[int], monkeypatch: pytest.MonkeyPatch) -> Reassembly:
    """Reassembly over ``rows`` in pieces, and one more tick for keys opened in the last micro-batch."""
    with tempfile.TemporaryDirectory() as place:
        query = Reassembly(monkeypatch, place)
        for piece in cut(rows, cuts):
            query.batch(piece)
        query.batch([{**rows[-1], "event_us": rows[-1]["event_us"] + 1}])
    return query


@st.composite
def channels(draw: st.DrawFn) -> list[InputRow]:
    """What an observer hears of two participants: some messages lost, some repeated, ticks among them."""
    config = SdsParameters(repair=False)
    speakers = {name: SdsChannel("talk", name, config) for name in ("alice", "bob")}
    rows: list[InputRow] = []
    now = START
    for number in range(draw(st.integers(2, 12))):
        now += draw(st.integers(1, 30_000))
        name = draw(st.sampled_from(sorted(speakers)))
        content = f"message {number}".encode()
        step = speakers[name].send(content, now)
        message = step.outgoing[0].message
        for other, channel in speakers.items():
            if other != name and draw(st.booleans()):
                channel.receive(message, now)
        for _ in range(draw(st.sampled_from([0, 1, 1, 2]))):
            at = now + draw(st.integers(0, 20_000))
            row = InputRow(
                "message",
                *PLACE,
                0,
                at * 1000,
                message.sender_id,
                message.message_id,
                "content",
                message.lamport_timestamp,
                message.causal_history,
                message.bloom_filter,
                (),
                sha256(content),
                id_verified=True,
                content_bytes=len(content),
                segment_kind="bare",
                entire_message_hash=sha256(content),
            )
            rows.append(row)
    rows += [
        InputRow("tick", *PLACE, 0, (START + draw(st.integers(0, 600_000))) * 1000)
        for _ in range(draw(st.integers(0, 3)))
    ]
    rows.append(InputRow("tick", *PLACE, 0, (START + 3_600_000) * 1000))
    rows.sort(key=lambda row: row.event_us)
    return [row._replace(kafka_offset=offset) for offset, row in enumerate(rows)]
