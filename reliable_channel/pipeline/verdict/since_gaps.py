"""Reads what rounds of verdicts compare with gaps: who heard which topic when, and what was missed since the first gap.

While a gap is open every round asks, so DuckDB reads the columns it needs from the files (docs/decisions.md). No Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from reliable_channel.lake import tables
from reliable_channel.lake.read import dataset_of, in_our_time
from reliable_channel.lake.tables import Table
from reliable_channel.pipeline.verdict.gaps import Gap
from reliable_channel.pipeline.verdict.gather import NEWLY_SURROUNDED, SENT_SINCE
from reliable_channel.pipeline.verdict.in_duckdb import select_rows

_REPEATED = ("vantage", "source", "pubsub_topic", "content_topic")
"""Columns of few different texts: read as dictionaries, who heard a million messages takes a third less CPU time."""


class SinceGaps:
    """Queries over tables as they were ``opened``, while there are ``gaps``."""

    def __init__(self, opened: Mapping[Table, DeltaTable], gaps: Sequence[Gap]) -> None:
        self._opened = opened
        self._since = min(gap.span.since for gap in gaps)

    def select(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query of :mod:`.gaps`."""
        rows: list[dict[str, Any]] = in_our_time(self._run(sql)).to_pylist()
        return rows

    def find_surrounded(self, new_lamport: pa.Table, new_ids: pa.Table) -> pa.Table:
        """The missing messages of which new ones may narrow down when they were sent
        (:data:`~.gather.NEWLY_SURROUNDED`)."""
        lost = self._open_rows(tables.LOST_DEPENDENCIES).filter(self._is_missed_since())
        return self._run(NEWLY_SURROUNDED, new_lamport, new_lamport=new_lamport, new_ids=new_ids, named_since_gaps=lost)

    def find_time_sent(self, lost: pa.Table) -> pa.Table:
        """The times after which the messages were sent (:data:`~.gather.SENT_SINCE`) that are missing according to
        ``lost``, rows of ``lost_dependencies``."""
        lost = lost.filter(self._is_missed_since())
        return self._run(SENT_SINCE, lost, named_since_gaps=lost)

    def _is_missed_since(self) -> pc.Expression:
        return pc.coalesce(pc.field("missing_since"), pc.field("event_time")) >= pa.scalar(self._since)

    def _run(self, sql: str, channels: pa.Table | None = None, **given: pa.Table | ds.Dataset) -> pa.Table:
        """The rows of a query, which may be about the messages of some ``channels`` alone."""
        sources: dict[str, pa.Table | ds.Dataset] = {**given}
        for table in (tables.SDS_MESSAGES, tables.SIGHTINGS):
            if table.name in sql:
                sources[table.name] = self._open_rows(table)
        if channels is not None:  # DuckDB would hold the messages of all
            of_channels = pc.field("channel_id").isin(pc.unique(channels["channel_id"]))
            sources[tables.SDS_MESSAGES.name] = sources[tables.SDS_MESSAGES.name].filter(of_channels)
        return select_rows(sql, sources)

    def _open_rows(self, table: Table) -> ds.Dataset:
        return dataset_of(self._opened[table], _REPEATED)
