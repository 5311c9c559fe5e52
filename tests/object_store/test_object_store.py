"""Tables on an object store: ``s3a://`` in a local S3 server (moto)."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from deltalake.exceptions import CommitFailedError

from reliable_channel.config import PathSettings, load
from reliable_channel.evidence.requests import find_sent_and_not_seen
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.commit import append_files
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.files import TaskFiles, WrittenFile
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import CLOCK, ENVELOPES, SDS_MESSAGES, SENDER_EVENTS, STORE_PRESENCE
from reliable_channel.pipeline.clock import Progress
from reliable_channel.pipeline.ingest.stream import tick_files
from tests.support.object_store import object_store

pytestmark = [pytest.mark.e2e, pytest.mark.faults]


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An S3 server with an empty bucket, and this process's credentials for it."""
    with object_store(tmp_path_factory.mktemp("s3")) as store, pytest.MonkeyPatch.context() as patched:
        for name, value in store.credentials().items():
            patched.setenv(name, value)
        yield store.url


@pytest.fixture
def paths(endpoint: str, request: pytest.FixtureRequest) -> PathSettings:
    place = f"s3a://bucket/{request.node.name}"
    found = load("local", paths={"data_dir": f"{place}/tables", "checkpoint_dir": f"{place}/checkpoints"}).paths
    create_tables(found, (SDS_MESSAGES, CLOCK))
    return found


def files(paths: PathSettings, offset: int) -> list[WrittenFile]:
    return tick_files(paths, {("t", 0): Progress(10**15 + offset, offset + 1)}, 10**15)


def offsets(paths: PathSettings) -> list[int]:
    return sorted(row["kafka_offset"] for row in rows_of(open_table(paths, SDS_MESSAGES)))


def test_of_two_writers_of_a_micro_batch_one_is_refused_and_no_commit_overwrites_another(paths: PathSettings) -> None:
    first, second = open_table(paths, SDS_MESSAGES), open_table(paths, SDS_MESSAGES)
    append_files(first, files(paths, 0), ("query", 0))
    with pytest.raises(CommitFailedError):
        append_files(second, files(paths, 0), ("query", 0))

    def write(number: int) -> None:
        append_files(open_table(paths, SDS_MESSAGES), files(paths, number), (f"query {number}", 0))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(1, 17)))
    assert offsets(paths) == [*range(17)]


def test_a_task_that_fails_leaves_no_file_and_vacuum_takes_what_was_never_committed(paths: PathSettings) -> None:
    there, root = filesystem(paths.table(CLOCK.name))

    def on_store() -> int:
        from pyarrow.fs import FileSelector

        return len([file for file in there.get_file_info(FileSelector(root)) if file.path.endswith(".parquet")])

    row = {"kafka_topic": "t", "kafka_partition": 0, "query_id": "q", "batch_id": 0}
    with pytest.raises(OverflowError), TaskFiles(paths) as written:
        written.add(CLOCK, as_arrow([row], CLOCK))
        raise OverflowError
    assert on_store() == 0
    with TaskFiles(paths) as written:
        written.add(CLOCK, as_arrow([row], CLOCK))
        written.finish()
    assert on_store() == 1
    open_table(paths, CLOCK).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert on_store() == 0


def test_what_senders_dispatched_is_asked_for_here_too(paths: PathSettings) -> None:
    settings = load("local").model_copy(update={"paths": paths})
    create_tables(paths, (ENVELOPES, SENDER_EVENTS))
    at_us = 1_800_000_000_000_000
    message = {
        "pubsub_topic": "/waku/2/rs/1/0",
        "content_topic": "/reliable-channel/1/chat/proto",
        "channel_id": "talk",
    }
    message |= {"sds_id": "m1", "sender_id": "alice", "event": "sent", "envelope_hash": bytes(32), "event_time": at_us}
    append_rows(paths, SENDER_EVENTS, as_arrow([message], SENDER_EVENTS))
    clock = {"kafka_topic": "t", "kafka_partition": 0, "query_id": "q", "batch_id": 0, "event_time": at_us + 3 * 10**9}
    append_rows(paths, CLOCK, as_arrow([clock], CLOCK))
    assert [request.sds_id for request in find_sent_and_not_seen(settings, as_arrow([], STORE_PRESENCE))] == ["m1"]
