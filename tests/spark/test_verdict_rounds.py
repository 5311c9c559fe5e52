"""After any rounds the verdicts are those that all evidence gives at once, though a round reads what is new only."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import Settings
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.verdict import replace, verdicts

from .chain import rows

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BEGIN_US = 1_767_225_600_000_000
STEP_S = 200
ROUNDS = 4
MESSAGES = 120
SENDERS = ("alice", "bob", "carol")
Row = dict[str, Any]


class Story:
    """Messages of three channels, and evidence about them that comes in any order: what a round gets is drawn."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.offset = 0
        self.rows: dict[tables.Table, list[Row]] = {}
        self.now_s = 0.0
        self.messages = [self._message(number) for number in range(MESSAGES)]

    def _message(self, number: int) -> Row:
        segmented = number % 3 == 0
        parts = 3 if segmented else 1
        # Payloads repeat; the ids of one message tell nothing of the order of its segments.
        payload = bytes([number % 20 if not segmented else 100 + number % 60]) * 32
        ids = [f"{self.random.getrandbits(64):016x}" for _ in range(parts)]
        return {
            "channel": {"pubsub_topic": None if number % 7 == 0 else "/waku/2/rs/1/0", "content_topic": "/a/1/b/proto"}
            | {"channel_id": f"c{number % 3}"},
            "sender_id": SENDERS[number % 2],
            "payload": payload,
            "ids": ids,
            "kinds": ["data", "data", "parity"] if segmented else ["bare"],
            "at_s": number * 10.0,
            "envelopes": [self.random.randbytes(32) for _ in ids],
        }

    def put(self, table: tables.Table, **row: Any) -> None:
        self.rows.setdefault(table, []).append(row)

    def time(self, seconds: float | None = None) -> int:
        return BEGIN_US + int((self.now_s - self.random.random() * 30 if seconds is None else seconds) * 1_000_000)

    def place(self) -> Row:
        self.offset += 1
        return {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "kafka_offset": self.offset}

    def one(self) -> None:
        """One piece of evidence about a message, any time after it was sent, or an hour before anybody heard of it."""
        sent = [message for message in self.messages if message["at_s"] <= self.now_s]
        m = self.random.choice(sent)
        n = self.random.randrange(len(m["ids"]))
        by_id = {**m["channel"], "sds_id": m["ids"][n]}
        kinds: list[Callable[[], None]] = [
            lambda: self.segment(m, n),
            lambda: self.segment(m, n),
            lambda: self.deliver(m),
            lambda: self.put(tables.ACKS, **by_id, acknowledged_by=self.random.choice(SENDERS), event_time=self.time()),
            lambda: self.put(tables.REPAIR_REQUESTS, **by_id, event_time=self.time()),
            lambda: self.named(m, n),
            lambda: self.sender(m, n),
            lambda: self.lost(m, n),
            lambda: self.store(m, n),
            lambda: self.logged(m, n),
            lambda: self.refused(m, n),
            lambda: self.refused_by_sds(m, n),
            lambda: self.expired(m),
        ]
        self.random.choice(kinds)()

    def segment(self, m: Row, n: int) -> None:
        past = [other["ids"][0] for other in self.messages if other["channel"] == m["channel"]][:6]
        self.put(
            tables.SDS_MESSAGES,
            **m["channel"],
            **self.place(),
            event_time=self.time(),
            ingest_time=self.time(),
            sender_id=m["sender_id"],
            sds_id=m["ids"][n],
            sds_kind="content",
            segment_kind=m["kinds"][n],
            segment_index=n if m["kinds"][n] == "data" else 0,
            entire_message_hash=m["payload"],
            envelope_hash=m["envelopes"][n],
            data_count=2 if len(m["ids"]) > 1 else 1,
            lamport_timestamp=BEGIN_US // 1000 + int(m["at_s"] * 1000) + n,
            causal_history=[
                {"sds_id": one, "retrieval_hint": None, "sender_id": None}
                for one in self.random.sample(past, min(2, len(past)))
            ],
        )

    def deliver(self, m: Row) -> None:
        segmented = len(m["ids"]) > 1
        place = self.place()
        common = {
            **m["channel"],
            **place,
            "sender_id": m["sender_id"],
            "entire_message_hash": m["payload"],
            "first_sds_id": m["ids"][0],
            "first_lamport_timestamp": BEGIN_US // 1000 + int(m["at_s"] * 1000) + 7 * m.get("sends", 0),
            "event_time": self.time(),
            "first_seen": self.time(m["at_s"] + 1),
        }
        if segmented:
            self.put(tables.REASSEMBLED_MESSAGES, **common, sds_ids=[*m["ids"][:2], None], data_count=2)
        # A text may be sent again under its id.
        if not m.get("delivered") or not segmented:
            m["delivered"], m["sends"] = True, m.get("sends", 0) + 1
            self.put(
                tables.DELIVERIES,
                **common,
                row_kind="message",
                sds_id=m["ids"][0],
                segment_kind=None if segmented else "bare",
                data_count=2 if segmented else 1,
                late=False,
            )

    def named(self, m: Row, n: int) -> None:
        by = self.random.choice([o for o in self.messages if o["channel"] == m["channel"]])
        self.put(
            tables.LOST_DEPENDENCIES,
            **m["channel"],
            sds_id=m["ids"][n],
            sender_id=m["sender_id"],
            status=self.random.choice(["lost", "before_observation", "recovered"]),
            needed_by=by["ids"][0],
            missing_since=self.time(self.now_s - 60),
            event_time=self.time(),
        )

    def sender(self, m: Row, n: int) -> None:
        event = self.random.choice(["queued", "queued", "sent", "failed", "rate_limited"])
        self.put(
            tables.SENDER_EVENTS,
            **m["channel"],
            sender_id=m["sender_id"],
            sds_id=m["ids"][n],
            send_id=m["ids"][0] if self.random.random() < 0.7 else None,
            event=event,
            entire_message_hash=m["payload"] if self.random.random() < 0.7 else None,
            envelope_hash=m["envelopes"][n] if event in ("sent", "failed") else None,
            event_time=self.time(m["at_s"] + 0.01 * n),
        )

    def lost(self, m: Row, n: int) -> None:
        by = self.random.choice(SENDERS)
        event = {"sender_id": m["sender_id"], "entire_message_hash": m["payload"], "event": "lost", "reported_by": by}
        self.put(tables.SENDER_EVENTS, **m["channel"], sds_id=m["ids"][n], **event, event_time=self.time())

    def store(self, m: Row, n: int) -> None:
        known = {**m["channel"], "sds_id": m["ids"][n]} if self.random.random() < 0.5 else {}
        outcome = self.random.choice(["present", "absent"])
        self.put(
            tables.STORE_PRESENCE,
            node="n",
            message_hash=m["envelopes"][n],
            outcome=outcome,
            asked_at=self.time(),
            **known,
        )

    def logged(self, m: Row, n: int) -> None:
        source = self.random.choice(["received", "failed", "relay"])
        seen = {"vantage": self.random.choice(["amber", "birch"]), "source": source, "seen_at": self.time()}
        self.put(tables.SIGHTINGS, message_hash=m["envelopes"][n], **seen)

    def refused(self, m: Row, n: int) -> None:
        name = m["ids"][n].encode()
        garbled = b"\x0a\x05alice\x12" + bytes([len(name)]) + name + b"\xff"
        unopened = {"reason": "undecryptable", "stage": "decryption", "message_hash": m["envelopes"][n]}
        broken = {"reason": "malformed_sds", "stage": "sds", "raw": garbled}
        self.put(tables.QUARANTINE, **self.place(), event_time=self.time(), **self.random.choice([unopened, broken]))

    def refused_by_sds(self, m: Row, n: int) -> None:
        detail = self.random.choice(["lamport_too_far 3600000 ms ahead", "not_causal other"])
        event = {"event": self.random.choice(["refused", "refused", "conflict"]), "detail": detail}
        self.put(tables.CHANNEL_EVENTS, **m["channel"], sds_id=m["ids"][n], **event, event_time=self.time())

    def expired(self, m: Row) -> None:
        if len(m["ids"]) > 1 and not m.get("delivered"):
            self.put(
                tables.INCOMPLETE_MESSAGES,
                **m["channel"],
                sender_id=m["sender_id"],
                entire_message_hash=m["payload"],
                event_time=self.time(),
                first_seen=self.time(m["at_s"] + 2),
                status=self.random.choice(["overdue", "given_up"]),
                reason="expired",
                data_count=2,
                sds_ids=m["ids"][:1],
                data_missing=[1],
            )

    def gap(self, name: str, since_s: float, until_s: float, status: str, vantage: str | None) -> None:
        self.put(
            tables.SOURCE_GAPS,
            kafka_topic="waku.envelopes",
            kafka_partition=-1,
            first_offset=len(name),
            last_offset=0,
            cause="bridge_restart",
            name=name,
            status=status,
            from_time=self.time(since_s),
            to_time=self.time(until_s),
            ingest_time=self.time(self.now_s),
            vantage=vantage,
        )

    def write(self, settings: Settings) -> None:
        self.offset += 1
        tick = {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "query_id": "q", "batch_id": self.offset}
        self.put(tables.CLOCK, **tick, kind="batch", event_time=self.time(self.now_s), next_offset=self.offset)
        for table, found in self.rows.items():
            append_rows(settings.paths, table, as_arrow(found, table))
        self.rows = {}


def without_as_of(found: list[Row]) -> list[Row]:
    return sorted(({**row, "as_of": None} for row in found), key=repr)


def times_of_files(settings: Settings) -> list[tuple[dt.datetime, dt.datetime]]:
    """The first and the last ``first_seen`` of each file of the verdicts, in order."""
    files = pa.table(open_table(settings.paths, tables.DELIVERY_STATUS).get_add_actions(flatten=True))
    return sorted(zip(files["min.first_seen"].to_pylist(), files["max.first_seen"].to_pylist(), strict=True))


def all_at_once(spark: SparkSession, settings: Settings, now_s: float) -> list[Row]:
    as_of = dt.datetime.fromtimestamp(BEGIN_US / 1_000_000 + now_s, dt.UTC)
    judged = verdicts.compute_verdicts(
        spark, settings, as_of, verdicts.read_silence(settings.paths, verdicts.open_evidence(settings.paths))
    )
    return without_as_of(
        [
            {
                name: value.replace(tzinfo=dt.UTC) if isinstance(value, dt.datetime) else value
                for name, value in row.items()
            }
            for row in (
                {n: bytes(v) if isinstance(v, bytearray) else v for n, v in found.asDict().items()}
                for found in judged.collect()
            )
        ]
    )


def first_round(settings: Settings, place: Path) -> list[Row]:
    """What a first round, for which all evidence is new, finds in the same tables. It needs no Spark."""
    fresh = settings.with_run_dir(place)
    Path(fresh.paths.data_dir).mkdir(parents=True)
    for table in verdicts.TABLES_READ:
        Path(fresh.paths.table(table.name)).symlink_to(settings.paths.table(table.name))
    verdicts.run(None, fresh)  # type: ignore[arg-type]
    return without_as_of(rows(fresh, tables.DELIVERY_STATUS))


def judge_everything(*args: object) -> None:
    raise AssertionError("a round over little that is new judges everything, which takes Spark a minute")


def test_rounds_over_what_is_new_give_what_all_evidence_gives(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All evidence: a first round reads it after every round, and Spark twice, before the gap and at the end."""
    monkeypatch.setattr(replace, "ROWS_OF_A_FILE", 5)
    monkeypatch.setattr(verdicts, "replace_all_verdicts", judge_everything)
    create_tables(settings.paths, (*verdicts.TABLES_READ, tables.DELIVERY_STATUS))
    story = Story(seed=1)
    judged = []
    for number in range(ROUNDS):
        story.now_s += STEP_S
        for _ in range(5 if number == ROUNDS - 1 else story.random.choice([60, 200])):
            story.one()
        if number == 1:
            open_table(settings.paths, tables.SDS_MESSAGES).optimize.compact()
        if number == 2:
            story.gap("g", 150, 420, "unfilled", "north")
        story.write(settings)
        judged.append(verdicts.run(spark, settings))
        status = without_as_of(rows(settings, tables.DELIVERY_STATUS))
        assert status == first_round(settings, tmp_path / f"first-{number}"), f"round {number}"
        if number == 1:
            assert status == all_at_once(spark, settings, story.now_s)
        if number == 0:
            assert judged[-1] == len(status), "all at first"
            spans = times_of_files(settings)
            assert len(spans) > 1
            assert all(until <= since for (_, until), (since, _) in itertools.pairwise(spans)), "in the order of time"
    assert judged[-1] < len(status), "fewer than all, when little is new"
    story.now_s += 10 * STEP_S
    story.write(settings)
    assert verdicts.run(spark, settings) < len(status)
    status = without_as_of(rows(settings, tables.DELIVERY_STATUS))
    assert status == first_round(settings, tmp_path / "first") == all_at_once(spark, settings, story.now_s)
    assert verdicts.run(spark, settings) == 0, "everything is settled, and nothing is new"
