"""What happens in the sample tables (:mod:`tests.support.sample_tables`), one function per chapter."""

from __future__ import annotations

import datetime as dt
from typing import Any

from reliable_channel.core.wire.bloom import FilterFormat
from tests.support.sample_rows import Story
from tests.support.sample_values import AS_OF, HOSTILE, KAFKA_TOPIC, START, STORE_NODES, at, digest, topic_of

TALKERS = ("alice", "bob", "carol")
JOBS = ("ingest", "reassembly", "ack")


def tell(story: Story) -> None:
    """The whole hour."""
    talk(story)
    files(story)
    add_refusals_by_the_sender(story)
    quiet_and_sealed(story)
    hostile(story)
    bad_records(story)
    gaps(story)
    vantage_points(story)
    node_logs(story)
    pipeline(story)


def talk(story: Story) -> None:
    """60 short messages. Number 20 never comes, 21 comes late, 40 comes from a store, 0 names what was before us."""
    story.message("before", "talk", "bob", -30, lost=[0])
    for number in range(60):
        name, sender, sent = f"talk {number}", TALKERS[number % 3], 60.0 * number
        after = [f"talk {n}" for n in range(max(0, number - 2), number)] or ["before"]
        story.message(
            name,
            "talk",
            sender,
            sent,
            size=20 + number,
            after=after,
            lost=[0] if number in (20, 45, 46, 47) else [],
            late=number == 21,
            delivered_after_s={21: 400.0, 22: 240.0, 40: 12.0, 48: 300.0}.get(number, 0.1 + 0.05 * (number % 7)),
            lost_dependencies=[story.messages["talk 20"].last.sds_id] if number == 22 else (),
            copies=2 if number % 9 == 0 else 1,
            source="store" if number == 40 else "relay",
            ephemeral=number == 33,
        )
    for number in range(58):
        name = f"talk {number}"
        for by in set(TALKERS) - {story.messages[name].sender}:
            if number in (20, 33, 45, 46, 47) or (by == "carol" and 30 <= number < 36):
                continue
            evidence = ("causal_history", "implied", "filter")[(number + len(by)) % 3]
            story.acknowledge(name, by, 60.0 * (1 + (number + len(by)) % 2) + number, evidence, f"talk {number + 2}")
        if number % 10 == 4:  # the stronger evidence that came later
            story.acknowledge(name, "bob" if story.messages[name].sender != "bob" else "alice", 500, "causal_history")
    story.lose("before", "talk 0", "before_observation", 0)
    story.verdict(story.messages["before"], "unknown", "before_observation")
    story.lose("talk 20", "talk 21", "lost")
    story.refetch("talk 20", "talk 21", [("absent", "absent"), ("absent", "error"), ("absent", "absent")])
    story.verdict(story.messages["talk 20"], "missing", "propagated_not_stored")
    story.lose("talk 21", "talk 22", "lost")
    story.lose("talk 21", "talk 22", "recovered", 340)
    story.refetch("talk 40", "talk 41", [("absent", "present")])
    story.refetch("talk 45", "talk 48", [("", ""), ("", "")], hint=False)  # asked for, and no node ever answered
    for number in (45, 46, 47):
        story.lose(f"talk {number}", "talk 48", "lost", hint=number != 45)
        story.verdict(
            story.messages[f"talk {number}"],
            "missing" if number == 45 else "unknown",
            None if number == 45 else "source_gap",
        )
    story.refetch("talk 46", "talk 48", [("error", "error"), ("error", "")])
    for number in range(0, 58, 5):  # the audit: store-b has no longer what is older than half an hour
        message = story.messages[f"talk {number}"]
        if message.delivered_s is not None:
            story.presence(STORE_NODES[0], message, "present", "audit", at(3600 + number))
            story.presence(STORE_NODES[1], message, "absent" if number < 30 else "present", "audit", at(3600 + number))
    for number, by in ((20, "alice"), (20, "carol"), (21, "bob"), (45, "alice")):
        carrier = story.messages[f"talk {number + 3}"]
        story.add(
            "repair_requests",
            **story.channel(carrier),
            sds_id=story.messages[f"talk {number}"].last.sds_id,
            sender_id=story.messages[f"talk {number}"].sender,
            requested_by=by,
            request_sds_id=carrier.last.sds_id,
            held_here=number == 21,
            event_time=at(carrier.last.sent_s + 0.1),
            kafka_partition=0,
            kafka_offset=number,
        )
    story.add(
        "channel_events",
        **story.channel(story.messages["talk 5"]),
        event="saturated_filter",
        sds_id=story.messages["talk 5"].last.sds_id,
        sender_id="carol",
        detail="61 % of the filter's bits are set",
        event_time=at(300),
        kafka_partition=0,
        kafka_offset=5,
    )
    show_filters(story)
    fresh = story.message("talk last", "talk", "alice", 3590, lost=[0], after=["talk 57"])
    story.verdict(fresh, "unknown", "unsettled", settled=False)


def show_filters(story: Story) -> None:
    """The last three messages in talk have the Bloom filters of their senders. Carol's lacks what the others said from
    number 30 to 35, and those after number 55 came too late for all of them."""
    for number in (57, 58, 59):
        message = story.messages[f"talk {number}"]
        known = [story.messages[f"talk {n}"] for n in range(56)]
        words = bytearray(FilterFormat().byte_count)
        lacked = range(30, 36) if message.sender == "carol" else ()
        FilterFormat().insert(words, [m.last.sds_id for n, m in enumerate(known) if n not in lacked])
        for row in story.rows["sds_messages"]:
            if row["sds_id"] == message.last.sds_id:
                row["bloom_filter"] = bytes(words)


def files(story: Story) -> None:
    """Segmented messages: k = 4 and up to two parity segments, every outcome a set of segments can have."""
    outcomes: dict[str, dict[str, Any]] = {
        "whole": {},
        "whole with parity": {"parity": 2},
        "saved by one parity": {"parity": 1, "lost": [2]},
        "saved by two parity": {"parity": 2, "lost": [0, 3]},
        "one short without parity": {"lost": [3]},
        "one short with parity": {"parity": 1, "lost": [1, 3]},
        "parity lost as well": {"parity": 1, "lost": [2], "lost_parity": [0]},
        "three short": {"parity": 1, "lost": [1, 2, 3], "lost_parity": [0]},
        "wrong hash": {"reason": "hash_mismatch"},
        "waits for what is lost": {"delivered_after_s": None, "closed": False},
    }
    for number, (name, how) in enumerate(list(outcomes.items()) + [(f"whole {n}", {"parity": 1}) for n in range(12)]):
        story.message(
            name,
            "files",
            "alice" if number % 2 else "bob",
            120.0 * number + 30,
            size=1_000 * (number + 1) ** 2,
            data=4,
            **{"delivered_after_s": 0.5 + number % 3, **how},
        )
        if name.startswith(("whole", "saved")):
            story.say(name, "queued", "sent")
            story.acknowledge(name, "bob" if number % 2 else "alice", 20.0 + number, carried_by="whole")
    story.verdict(story.messages["waits for what is lost"], "missing", "dependency_missing")
    story.refetch("one short without parity", "saved by one parity", [("absent", "absent")])


def add_refusals_by_the_sender(story: Story) -> None:
    """Messages of which only the sender, or quarantine, has a trace."""
    for number, (name, events, cause) in enumerate(
        (
            ("held back", ("queued", "rate_limited"), "rate_limited"),
            ("given up", ("queued", "failed"), "never_sent"),
            ("cancelled", ("queued", "dropped"), "never_sent"),
            ("garbled", ("queued", "sent"), "undecodable"),
            ("locked", ("queued", "sent"), "undecryptable"),
            ("stored nowhere", ("queued", "sent"), "propagated_not_stored"),
        )
    ):
        message = story.message(name, "files", "alice", 3000.0 + 30 * number, size=300, lost=[0])
        story.say(name, *events, detail="the epoch's budget is used up" if cause == "rate_limited" else None)
        story.verdict(message, "missing", cause)
    locked = story.messages["locked"]
    story.refuse(
        "decryption", "undecryptable", 3120, b"\x08\x01" + digest("locked"), detail="no key opens it",
        content_topic=topic_of("files"), message_hash=locked.last.envelope_hash,
    )  # fmt: skip
    story.refetch("stored nowhere", "whole 11", [("absent", "absent"), ("absent", "absent")])


def quiet_and_sealed(story: Story) -> None:
    """A channel that fell silent after ten minutes, and one of which no plaintext is kept."""
    for number in range(10):
        story.message(f"quiet {number}", "quiet", "dave", 60.0 * number, size=64)
        story.message(f"sealed {number}", "sealed", "erin", 300.0 * number, size=128, sealed=True)
        if number < 5:
            story.acknowledge(f"sealed {number}", "frank", 45, "filter")


def hostile(story: Story) -> None:
    """Three messages in a channel of each hostile string, from a sender and on a topic of another one: one arrives, one
    arrives in parts, one is only named."""
    for number, text in enumerate(HOSTILE):
        sender, topic = HOSTILE[(number + 1) % len(HOSTILE)], "/" + HOSTILE[(number + 2) % len(HOSTILE)]
        start = 600.0 + 120 * number
        common: dict[str, Any] = {"content_topic": topic, "partition": number % 3}
        story.message(f"hostile {number}", text, sender, start, sds_id=f"{text} {number}", size=30, **common)
        story.message(f"torn {number}", text, sender, start + 10, data=3, lost=[1], size=900, **common)
        story.message(f"named {number}", text, sender, start + 20, lost=[0], **common)
        story.acknowledge(f"hostile {number}", HOSTILE[(number + 3) % len(HOSTILE)], 33)
        story.lose(f"named {number}", f"hostile {number}", "lost")
        story.refetch(f"named {number}", f"hostile {number}", [("absent", "absent")])
        story.verdict(story.messages[f"named {number}"], "missing", None)
        story.add(
            "channel_events",
            **story.channel(story.messages[f"hostile {number}"]),
            event="conflict",
            sds_id=f"{text} {number}",
            sender_id=sender,
            detail=text,
            event_time=at(start),
        )


def bad_records(story: Story) -> None:
    """Quarantine: several stages and reasons, a kept suspicion, one that was requeued, raw bytes of every kind."""
    for number in range(5):
        story.refuse("envelope", "malformed_envelope", 100.0 * number, bytes(range(256)), detail="truncated field 4")
    for number in range(3):
        story.refuse(
            "sds", "sds_without_id", 200.0 * number, b"\n\x05alice", detail="an SDS message needs a message id",
            content_topic=topic_of("talk"), message_hash=digest("bad", number),
        )  # fmt: skip
    story.refuse("record", "null_value", 900, None, detail="a tombstone")
    story.refuse("record", "too_large", 950, b"x" * 5000, detail="1 048 577 bytes, at most 1 048 576 are read")
    story.refuse(
        "segment", "segment_hash_length", 1000, b"\x0a\x10" + b"h" * 16, disposition="kept",
        content_topic=topic_of("files"), message_hash=digest("kept"),
    )  # fmt: skip
    story.refuse(
        "decryption", "undecryptable", 1100, b"\x01\x02\x03", disposition="requeued",
        content_topic=topic_of("files"), message_hash=digest("requeued"),
    )  # fmt: skip
    for number, text in enumerate(HOSTILE):
        story.refuse(
            "sds", "malformed_sds", 1200.0 + number, text.encode("utf-8", "surrogatepass"), detail=text,
            content_topic=f"/{text}", message_hash=digest("hostile", number),
        )  # fmt: skip
    story.add(
        "envelopes",
        **story._place("/plain/1/other/proto"),
        record_time=at(5),
        event_time=at(5),
        ingest_time=at(7),
        source="filter",
        pubsub_topic="/waku/2/rs/1/0",
        content_topic="/plain/1/other/proto",
        message_hash=digest("plain"),
        value=b"plain",
        value_bytes=5,
        sender_timestamp_ns=None,
        ephemeral=True,
        kind="plain",
    )


def gaps(story: Story) -> None:
    """Offsets that retention took, and a quarter of an hour in which the bridge did not listen, filled in part."""
    story.add(
        "source_gaps",
        kafka_topic=KAFKA_TOPIC,
        ingest_time=at(3000),
        kafka_partition=1,
        first_offset=100,
        last_offset=119,
        cause="offset_jump",
        name=f"{KAFKA_TOPIC}-1-100",
        status="open",
        from_time=at(2690),
        to_time=at(2830),
    )
    for offset, status in ((7, "open"), (8, "filled")):
        story.add(
            "source_gaps",
            kafka_topic="waku.bridge-gaps",
            ingest_time=at(3000 + 60 * (offset - 7)),
            kafka_partition=-1,
            first_offset=offset,
            last_offset=offset,
            cause="bridge_restart",
            name="bridge-1",
            status=status,
            from_time=at(1500),
            to_time=at(1560),
        )


def vantage_points(story: Story) -> None:
    """Two bridges: one saw both envelopes, the other missed the second, which a store still had."""
    for name, second in (("north", "relay"), ("south", "store")):
        for number, source in ((0, "relay"), (1, second)):
            message = story.messages[f"talk {number}"]
            story.add(
                "sightings",
                message_hash=message.last.envelope_hash,
                vantage=name,
                node=f"http://{name}.example:8645",
                source=source,
                pubsub_topic="/waku/2/rs/1/0",
                seen_at=at(10 + number),
            )


def node_logs(story: Story) -> None:
    """The logs of three nodes over the first nine minutes: the clock of one is 4.2 s ahead, one lacks message 3, and
    nobody saw message 5."""
    lost = {story.messages[f"talk {number}"].last.envelope_hash: number for number in (3, 5)}
    first = {}
    for row in story.rows["sds_messages"]:
        if row["event_time"] < at(590) and row["pubsub_topic"] == "/waku/2/rs/1/0":
            first.setdefault(row["envelope_hash"], row["event_time"])
    for name, ahead_s in (("amber", 0.0), ("birch", 4.2), ("cedar", 0.01)):
        for message_hash, time in first.items():
            if lost.get(message_hash) not in (5, 3 if name == "cedar" else 5):
                story.add(
                    "sightings",
                    message_hash=message_hash,
                    vantage=name,
                    node="16U*74x9yd",
                    source="received",
                    pubsub_topic="/waku/2/rs/1/0",
                    seen_at=time + dt.timedelta(seconds=ahead_s),
                )


def pipeline(story: Story) -> None:
    """Twelve micro-batches of every query in two runs, the recorded clock, open keys, and the alerts of jobs."""
    for job_number, query in enumerate(JOBS):
        query_id = f"{query}-checkpoint"
        for batch in range(12):
            rows = 40.0 + 10 * ((batch * 7 + job_number) % 5)
            took = 900.0 + 150 * ((batch + job_number) % 4)
            values = {
                "input_rows": rows,
                "input_rows_per_second": rows / 5,
                "processed_rows_per_second": rows / took * 1000,
                "trigger_execution_ms": took,
                "add_batch_ms": took * 0.8,
                "query_planning_ms": took * 0.05,
                "wal_commit_ms": 30.0,
                "commit_offsets_ms": 25.0,
            }
            if query == "ingest":
                values |= {"quarantined_rows": float(batch % 3), "lag_offsets": 500.0 / (batch + 1)}
            else:
                values |= {"lag_commits": float(max(0, 5 - batch))}
            if query in ("reassembly", "ack"):
                values |= {
                    "state_rows": 5.0 * batch,
                    "state_updated_rows": 3.0,
                    "state_memory_bytes": 1_000_000.0 + 50_000 * batch,
                    "state_disk_bytes": 200_000.0 * batch,
                    "state_commit_ms": 20.0,
                    "failed_rows": 0.0,
                }
            for metric, value in values.items():
                story.add(
                    "pipeline_metrics",
                    query=query,
                    query_id=query_id,
                    run_id=f"{query}-run-{batch // 6}",
                    batch_id=batch,
                    metric=metric,
                    value=value,
                    recorded_at=at(300.0 * batch + job_number),
                )
    for partition in range(3):
        for batch in range(12):
            story.add(
                "clock",
                kafka_topic=KAFKA_TOPIC,
                kafka_partition=partition,
                query_id="ingest-checkpoint",
                batch_id=batch,
                kind="batch",
                event_time=at(300.0 * (batch + 1)),
                next_offset=10 * (batch + 1),
                recorded_at=at(300.0 * (batch + 1) + 2),
            )
        story.add(
            "clock",
            kafka_topic=KAFKA_TOPIC,
            kafka_partition=partition,
            query_id="ingest-checkpoint",
            batch_id=11,
            kind="closing",
            event_time=AS_OF,
            next_offset=121,
            recorded_at=START + dt.timedelta(seconds=3700),
        )
