"""Runs the queries of :mod:`.gather` in DuckDB. No Spark.

A round has its evidence in the driver's memory. Spark would take seconds to plan and compile these queries, for rows
that DuckDB goes through in a tenth of a second (docs/decisions.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from contextlib import closing

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds

from reliable_channel.lake.read import in_our_time
from reliable_channel.lake.tables import CHANNEL_KEY, Table
from reliable_channel.lake.tables.views import DUCKDB_MACROS, EVIDENCE_MACROS
from reliable_channel.pipeline.verdict.gather import EVIDENCE, FACTS, IDS, NO_SENT_SINCE, SENT_SINCE
from reliable_channel.runtime.interrupts import run_interruptibly


def _rewrite_struct(type_: re.Match[str]) -> str:
    fields = re.sub(r"array<(\w+)>", r"\1[]", type_[1]).replace(": ", " ")
    return f"struct({fields.replace('timestamp', 'timestamptz')})"


_FACTS = re.sub(r"struct<([^()]*)>(?=\))", _rewrite_struct, FACTS)
"""The types of structs are all that the two engines write differently."""

# An unknown name in a query is an error: DuckDB would otherwise take it for a Python variable or a file.
_PREPARE = f"""
    {DUCKDB_MACROS}{EVIDENCE_MACROS}
    SET TimeZone = 'UTC'; SET python_enable_replacements = false; SET enable_external_access = false;
"""


def gather_evidence(
    rows: Mapping[Table, pa.Table], ids: pa.Table, suspected: Set[str], sent: pa.Table | None
) -> pa.Table:
    """The row of evidence about each message with one of the SDS ``ids``, which have their channels. ``rows``: the
    evidence; ``suspected``: the ids in records that could not be decoded; ``sent``: the rows of
    :data:`~.gather.SENT_SINCE`; without any, there were no gaps."""
    # DuckDB cannot subtract the last times.
    given: dict[str, pa.Table | ds.Dataset] = {table.name: in_our_time(some) for table, some in rows.items()}
    given |= {"about": ids, "suspected": pa.table({"sds_id": pa.array(sorted(suspected), pa.string())})}
    if sent is not None:
        given["sent"] = sent
    views = {"sent": NO_SENT_SINCE} if sent is None else {}
    return select_rows(_build_evidence_query(views), given)


def select_rows(query: str, sources: Mapping[str, pa.Table | ds.Dataset]) -> pa.Table:
    """The rows of a query for DuckDB over ``sources``, by name."""
    with closing(duckdb.connect()) as engine:
        engine.execute(_PREPARE)
        for name, source in sources.items():
            engine.register(name, source)
        return run_interruptibly(lambda: engine.sql(query).to_arrow_table(), engine.interrupt)


def evidence_query(in_gaps: bool) -> str:
    """The query of the row of evidence about each message, over the tables, for the SDS ids ``$ids`` of one channel
    (``$pubsub_topic``, …). ``$suspected``: the ids in records that could not be decoded; ``in_gaps``: there were times
    in which no bridge listened."""
    channel = ", ".join(f"${name}::varchar as {name}" for name in CHANNEL_KEY)
    return _build_evidence_query(
        {
            "about": f"select {channel}, unnest($ids::varchar[]) as sds_id",
            "suspected": "select unnest($suspected::varchar[]) as sds_id",
            "named_since_gaps": "select * from lost_dependencies",
            "sent": SENT_SINCE if in_gaps else NO_SENT_SINCE,
        }
    )


def _build_evidence_query(views: Mapping[str, str]) -> str:
    """The query for the ids in ``about``, over the tables, ``suspected`` and ``sent``, of which ``views`` has some."""
    same = " and ".join(f"fact.{name} is not distinct from about.{name}" for name in (*CHANNEL_KEY, "sds_id"))
    facts = f"select * from ({_FACTS}) as fact semi join about on {same}"  # noqa: S608 - text of our own only
    named = ", ".join(f"{name} as ({text})" for name, text in {**views, "facts": facts, "ids": IDS}.items())
    return f"with {named} select * from ({EVIDENCE})"  # noqa: S608
