"""Finds the event time as of which a round of verdicts judges. No Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import pyarrow.compute as pc

from reliable_channel.config import PathSettings
from reliable_channel.lake.checkpoints import read_checkpoints
from reliable_channel.lake.follow import list_next_files, read_files
from reliable_channel.lake.read import open_at
from reliable_channel.lake.tables import EPOCH, ORDERED_SDS_MESSAGES, SDS_MESSAGES, micros
from reliable_channel.pipeline.clock import read_progress


def find_as_of(paths: PathSettings) -> dt.datetime | None:
    """The event time up to which ingest, reassembly and ack have read, in the partition that was read furthest;
    ``None`` if ingest has read nothing.

    A message that one of them has yet to read has left no traces in its tables, which is no evidence of a loss."""
    reached = [at.event_time_us for at in read_progress(paths).values()]
    if not reached:
        return None
    return EPOCH + dt.timedelta(microseconds=min([max(reached), *_find_first_unread(paths)]))


def _find_first_unread(paths: PathSettings) -> Iterator[int]:
    """For each job that is behind: the event time (µs) of the first row it has yet to read, in the partition that is
    furthest."""
    checkpoints = read_checkpoints(paths)
    for table in (SDS_MESSAGES, ORDERED_SDS_MESSAGES):
        if (opened := open_at(paths.table(table.name))) is None:
            continue
        table_id = str(opened.metadata().id)
        for next_version in (c.offsets.delta[table_id] for c in checkpoints if table_id in c.offsets.delta):
            files = list_next_files(paths, table, opened, next_version)
            rows = read_files(paths, table, files, ["kafka_topic", "kafka_partition", "event_time", "sds_kind"])
            # Ticks say what a micro-batch reached; without messages, nothing has yet to be read before them.
            messages = rows.filter(pc.not_equal(rows["sds_kind"], "tick").fill_null(True))
            first = (messages if messages.num_rows else rows).group_by(["kafka_topic", "kafka_partition"])
            if rows.num_rows:
                yield micros(pc.max(first.aggregate([("event_time", "min")])["event_time_min"]).as_py())
