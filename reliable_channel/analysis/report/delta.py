"""Opens Delta tables for reports and the dashboard with delta-rs and Arrow, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.schema import PrimitiveType

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.read import public_dataset

if TYPE_CHECKING:
    import pyarrow.dataset as ds

REMEDY = "Run the pipeline (`reliable-channel run --verdicts`) or `reliable-channel demo` first."

REPEATED = frozenset(
    (
        "kafka_topic",
        "pubsub_topic",
        "content_topic",
        "channel_id",
        "sender_id",
        "acknowledged_by",
        "evidence",
        "certainty",
        "verdict",
        "cause",
        "sds_kind",
        "segment_kind",
        "stage",
        "reason",
        "disposition",
        "node",
        "outcome",
        "purpose",
        "query",
        "run_id",
        "metric",
    )
)
"""Columns of few different strings in many rows: read as dictionaries, in a third of the time and memory."""

_STRING = PrimitiveType("string")


def no_table_fault(place: str) -> EnvironmentFault:
    """The error when one table does not exist."""
    return EnvironmentFault(f"There is no Delta table at {place}.", REMEDY)


def no_tables_fault(data_dir: str) -> EnvironmentFault:
    """The error when no table of the pipeline exists."""
    return EnvironmentFault(f"There are no Delta tables under {data_dir}.", REMEDY)


def dataset(table: DeltaTable) -> ds.Dataset:
    """The table's files as a data set, with dictionaries for :data:`REPEATED` columns."""
    repeated = {f.name for f in table.schema().fields if f.name in REPEATED and f.type == _STRING}
    return public_dataset(table, repeated)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 200 characters."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
