"""Every symptom of docs/runbook.md is broken by a test; where the page's own queries show the cause, here."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import ChannelsSettings, ChannelTopic, PathSettings
from reliable_channel.lake.tables import ENVELOPES, PIPELINE_METRICS, QUARANTINE, SDS_MESSAGES
from reliable_channel.pipeline.ingest.decode import RecordDecoder
from reliable_channel.pipeline.verdict.rules import RULES, Verdict
from reliable_channel.simulation.presets import small_scenario
from reliable_channel.simulation.world import simulate
from tests.support.doc_blocks import ROOT, blocks_of
from tests.support.simulated_tables import write, write_simulated

PAGE = ROOT / "docs" / "runbook.md"
BROKEN_BY = {
    "Nothing arrives": [
        "tests/unit/pipeline/test_status.py::test_a_place_without_tables_is_a_fault",
        "tests/unit/pipeline/test_status.py::test_a_broker_that_fails_or_hangs_leaves_the_lag_unknown",
        "tests/unit/pipeline/test_status.py::test_ingest_is_behind_kafka_by_offsets",
        "tests/docs/test_runbook.py::test_content_topics_that_the_configuration_does_not_follow_are_plain",
    ],
    "The lag grows": [
        "tests/unit/pipeline/test_status.py::test_the_lag_of_a_job_is_what_it_has_not_read",
        "tests/docs/test_runbook.py::test_a_job_that_is_slower_than_its_source_and_a_flooded_channel_are_named",
    ],
    "The disk fills": [
        "tests/e2e/test_kill_restart.py::test_a_full_disk_is_one_sentence",
        "tests/spark/test_operations.py::test_operations_spare_a_stream_that_lags_and_give_back_every_table",
    ],
    "A job died": [
        "tests/e2e/test_kill_restart.py::test_the_killed_run_is_true",
        "tests/unit/alerts/test_heartbeat.py::test_every_surface_says_what_stopped_and_since_when",
    ],
    "Everything is missing": ["tests/e2e/test_demo.py::test_the_report_says_the_same_as_the_truth"],
    "Somebody asks for proof": ["tests/unit/report/test_evidence_bundle.py::test_the_page_works_word_by_word"],
    "Participants do not hear each other": [
        "tests/unit/lake/test_participant_views.py::test_each_side_of_a_partition_lacks_what_the_other_sent_since",
    ],
}
PLACE = {"kafka_topic": "waku.envelopes", "kafka_partition": 0}


def ask(place: Path, words: str) -> list[dict[str, Any]]:
    """What the page's query with these words shows over the tables."""
    commands = [shlex.split(line) for block in blocks_of(PAGE) for line in block.commands()]
    (query,) = [command[2] for command in commands if command[1] == "sql" and words in command[2]]
    return TableSnapshot(PathSettings(data_dir=str(place))).select(query)


def test_every_cause_of_a_missing_message_has_a_remedy() -> None:
    (table,) = re.findall(r"^\| cause \|.*?\n\n", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    named = {name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    assert {cause for _, verdict, cause in RULES if verdict is Verdict.MISSING and cause is not None} <= named


def test_every_symptom_is_broken_by_a_test() -> None:
    assert re.findall(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE) == list(BROKEN_BY)
    for path, name in (test.split("::") for tests in BROKEN_BY.values() for test in tests):
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8")


def test_content_topics_that_the_configuration_does_not_follow_are_plain(tmp_path: Path) -> None:
    topics = ChannelsSettings(content_topics=(ChannelTopic(content_topic="/another/1/app/proto"),))
    decoder = RecordDecoder(topics)
    rows = []
    for record in simulate(small_scenario()).records:
        headers = dict(record.headers)
        if record.value is None or not {"pubsub_topic", "source"} <= headers.keys():
            continue
        row = decoder.decode(record.value, headers["pubsub_topic"], headers["source"], record.at_ms * 1000)
        if row.reason is None:
            rows.append({**PLACE, "kafka_offset": len(rows), "kind": row.kind, "event_time": record.at_ms * 1000})
    write(tmp_path, ENVELOPES, rows)
    write(tmp_path, QUARANTINE, [])
    assert [row["kind"] for row in ask(tmp_path, "FROM envelopes")] == ["plain"]
    assert ask(tmp_path, "FROM quarantine") == []


def test_a_job_that_is_slower_than_its_source_and_a_flooded_channel_are_named(tmp_path: Path) -> None:
    write_simulated(tmp_path, simulate(small_scenario()))
    lake = TableSnapshot(PathSettings(data_dir=str(tmp_path)))
    (newest,) = lake.select("SELECT max(event_time) AS at FROM sds_messages")
    at_us = round(newest["at"].timestamp() * 1e6)
    flood = {**PLACE, "content_topic": "/a/1/b/proto", "channel_id": "flooded", "event_time": at_us}
    write(
        tmp_path,
        SDS_MESSAGES,
        [{**flood, "kafka_offset": 10**6 + number, "sender_id": f"s{number}"} for number in range(2_000)],
    )
    metrics = {"input_rows_per_second": (100, 900), "processed_rows_per_second": (300, 310), "state_rows": (5, 6)}
    rows = [
        {"query": "ack", "metric": metric, "value": float(value), "recorded_at": at_us + number}
        for metric, values in metrics.items()
        for number, value in enumerate(values)
    ]
    write(tmp_path, PIPELINE_METRICS, rows)
    now = {row["metric"]: row["now"] for row in ask(tmp_path, "FROM pipeline_metrics")}
    assert now["input_rows_per_second"] > now["processed_rows_per_second"]
    busiest = ask(tmp_path, "FROM sds_messages")[0]
    assert (busiest["channel_id"], busiest["messages"], busiest["senders"]) == ("flooded", 2_000, 2_000)
