"""docs/howto/erase.md, word by word: what a sender sent is in no table any more, and the others' messages still are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import reliable_channel.runtime.spark as runtime
from reliable_channel.config import Settings
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import exists, open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.runner.run import run_chain, run_once
from reliable_channel.simulation.presets import small_scenario
from reliable_channel.simulation.world import simulate
from tests.support.doc_blocks import ROOT, blocks_of

from .chain import as_kafka, chain_over, configured
from .kafka_log import KafkaLog

pytestmark = [pytest.mark.spark, pytest.mark.slow]

CODE, COMMANDS = (
    block for block in blocks_of(ROOT / "docs" / "howto" / "erase.md") if block.about.startswith("tests/spark")
)
SENDER = "alice"
OTHERS_WORDS = {
    *("sds_messages.causal_history", "ordered_sds_messages.causal_history"),
    *("refetch_requests.sender_id", "lost_dependencies.sender_id", "delivery_status.sender_id"),
}
"""Where the page says that messages of others name the sender."""


def find_columns(settings: Settings, payloads: set[bytes]) -> set[str]:
    """The columns in which the sender's name or one of the payloads is."""
    return {
        f"{table.name}.{name}"
        for table in tables.TABLES
        if exists(settings.paths, table)
        for row in rows_of(open_table(settings.paths, table))
        for name, value in row.items()
        if f"'{SENDER}'" in repr([value]) or (isinstance(value, bytes) and any(part in value for part in payloads))
    }


def list_delivered(settings: Settings) -> set[tuple[str, bytes]]:
    return {
        (row["sender_id"], row["payload"])
        for row in rows_of(open_table(settings.paths, tables.DELIVERED_MESSAGES))
        if row["sender_id"] != SENDER
    }


def test_nothing_of_a_sender_is_left_after_the_page(
    spark: SparkSession, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Callable[..., str]
) -> None:
    world = simulate(small_scenario())
    here = configured(settings, world, tmp_path / "run")
    log = KafkaLog(spark, tmp_path / "log")
    log.produce(as_kafka(world.records))
    queries = chain_over(log)
    run_once(spark, here, queries=queries, close_after_ms=3_600_000)
    create_tables(here.paths, {*tables.TABLES} - {tables.SENT_ROWS})
    event = {"channel_id": "talk", "sender_id": SENDER, "sds_id": "1", "event": "queued", "event_time": 0}
    append_rows(here.paths, tables.SENDER_EVENTS, as_arrow([event], tables.SENDER_EVENTS))
    payloads = {message.payload for message in world.truth.messages if message.sender == SENDER}
    before, delivered = find_columns(here, payloads), list_delivered(here)
    assert {"delivered_messages.payload", "sds_messages.content", "sender_events.sender_id"} < before
    assert delivered

    (tmp_path / "settings.yaml").write_text(here.to_yaml())
    monkeypatch.setenv("RELIABLE_CHANNEL_CONFIG", str(tmp_path / "settings.yaml"))
    monkeypatch.setattr(runtime, "open_session", lambda settings: spark)
    exec(compile(CODE.text, str(CODE), "exec"), {"__name__": "example"})  # noqa: S102  our own page
    rebuild, remove = COMMANDS.commands()
    shell(here, *rebuild.split()[1:])
    for pattern in remove.split()[2:]:
        for place in tmp_path.glob(pattern):
            shutil.rmtree(place)
    assert not [*(tmp_path / "run").glob("*before*")]
    assert find_columns(here, payloads) <= OTHERS_WORDS
    assert list_delivered(here) == delivered
    run_chain(spark, here, queries=queries)  # the jobs go on
    assert find_columns(here, payloads) <= OTHERS_WORDS
