"""Records that a continuous job has not ended, so that a reader can distinguish a crash from an orderly end; and
whether a job that comes again and again fails, which shows nowhere else but in its log."""

from __future__ import annotations

import datetime as dt
import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from reliable_channel.config import PathSettings
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import exists
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import PIPELINE_METRICS
from reliable_channel.lake.tables.operations import CONTINUOUS, FAILING

_log = logging.getLogger(__name__)


@contextmanager
def declare_live(paths: PathSettings, job: str, stop: threading.Event) -> Iterator[None]:
    """Declare a continuous job for the time of this block. It ends in order if ``stop`` is set, even by an exception:
    the signal that set it also ends the JVM of spark-submit, so calls into the JVM fail then."""
    create_tables(paths, (PIPELINE_METRICS,))
    run = str(uuid.uuid4())
    declare(paths, job, run, True)
    try:
        yield
    finally:
        if stop.is_set():
            declare(paths, job, run, False)


def declare(paths: PathSettings, job: str, run: str, is_live: bool, now: dt.datetime | None = None) -> None:
    """Write one declaration of the run ``run`` of a job."""
    write_metric(paths, job, run, 0 if is_live else 1, CONTINUOUS, float(is_live), now)


@contextmanager
def record_outcome(paths: PathSettings, job: str) -> Iterator[None]:
    """Record whether this run of a job, which is the block, fails."""
    try:
        yield
    except Exception:
        record_failing(paths, job, True)
        raise
    record_failing(paths, job, False)


def record_failing(paths: PathSettings, job: str, is_failing: bool) -> None:
    """Record whether a job that comes again and again fails, for the alert ``failing_job``. Without a pipeline there is
    nobody to tell. What cannot be written is only logged: it must not keep the job from its work."""
    try:
        if exists(paths, PIPELINE_METRICS):
            write_metric(paths, job, str(uuid.uuid4()), 0, FAILING, float(is_failing))
    except Exception as error:
        _log.warning("How %s ended was not recorded: %s", job, error)


def write_metric(
    paths: PathSettings, query: str, run: str, number: int, metric: str, value: float, now: dt.datetime | None = None
) -> None:
    """Write one row of ``pipeline_metrics``, the ``number``-th of this run, by the wall clock (``now``)."""
    row = {
        "query": query,
        "run_id": run,
        "batch_id": number,
        "metric": metric,
        "value": value,
        "recorded_at": now or dt.datetime.now(dt.UTC),
    }
    append_rows(paths, PIPELINE_METRICS, as_arrow([row], PIPELINE_METRICS))
