"""The upgrade from four jobs to three: the work of ``deliver`` must be done before ack takes it over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reliable_channel.config import PathSettings, load
from reliable_channel.errors import ConfigurationError
from reliable_channel.pipeline.running.taking_over import finish
from reliable_channel.pipeline.storage.arrow_schema import as_arrow
from reliable_channel.pipeline.storage.ddl import create_tables
from reliable_channel.pipeline.storage.io import append_rows, open_table
from reliable_channel.pipeline.tables import DELIVERIES


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    """Tables in which ``deliveries`` has two commits with rows, the versions 1 and 2."""
    found = load("local").with_run_dir(tmp_path).paths
    create_tables(found, (DELIVERIES,))
    row = {"pubsub_topic": "/p", "content_topic": "/c", "channel_id": "c", "row_kind": "message"}
    for number in range(2):
        append_rows(found, DELIVERIES, as_arrow([{**row, "kafka_offset": number}], DELIVERIES))
    return found


def checkpoint(paths: PathSettings, query: str, next_version: int, planned: int, committed: int) -> Path:
    """A checkpoint that has committed the micro-batches up to ``committed``, planned those up to ``planned``."""
    place = Path(paths.checkpoint(query))
    for folder in ("offsets", "commits"):
        (place / folder).mkdir(parents=True)
    (place / "metadata").write_text('{"id":"some-query"}')
    source = {"reservoirId": str(open_table(paths, DELIVERIES).metadata().id), "reservoirVersion": next_version}
    for number in range(planned + 1):
        entry = "\n".join(["v1", json.dumps({"batchTimestampMs": 1, "conf": {}}), json.dumps(source)])
        (place / "offsets" / str(number)).write_text(entry)
    for number in range(committed + 1):
        (place / "commits" / str(number)).write_text("v1\n{}")
    return place


def test_without_the_job_there_is_nothing_to_finish(paths: PathSettings) -> None:
    checkpoint(paths, "ack", 3, planned=1, committed=0)
    finish(paths)


def test_the_checkpoint_of_a_job_that_has_read_everything_goes(paths: PathSettings) -> None:
    place = checkpoint(paths, "deliver", 3, planned=0, committed=0)
    ack = checkpoint(paths, "ack", 3, planned=0, committed=0)
    finish(paths)
    assert not place.exists()
    assert ack.exists()
    finish(paths)


def test_rows_that_deliver_has_still_to_read_are_not_left_behind(paths: PathSettings) -> None:
    place = checkpoint(paths, "deliver", 2, planned=0, committed=0)
    with pytest.raises(ConfigurationError, match=r"still to read 1 commits .*jobs/deliver.py --once.*rebuild"):
        finish(paths)
    assert place.exists()


def test_a_micro_batch_that_deliver_began_is_finished_first(paths: PathSettings) -> None:
    checkpoint(paths, "deliver", 3, planned=1, committed=0)
    with pytest.raises(ConfigurationError, match="has still to read"):
        finish(paths)


def test_what_an_interrupted_ack_has_written_is_not_delivered_twice(paths: PathSettings) -> None:
    place = checkpoint(paths, "deliver", 3, planned=0, committed=0)
    checkpoint(paths, "ack", 3, planned=1, committed=0)
    with pytest.raises(ConfigurationError, match="ack was interrupted"):
        finish(paths)
    assert place.exists()
