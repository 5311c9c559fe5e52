"""Defines the views over the tables, in SQL that Spark and DuckDB (with :data:`DUCKDB_MACROS`) both run.

A view is no table: nothing is stored, and it has the rows that its tables have at the time of the query.
"""

from __future__ import annotations

from reliable_channel.lake.tables import BY_NAME, Table
from reliable_channel.lake.tables.views.messages import DISPATCHES, MESSAGES
from reliable_channel.lake.tables.views.model import DUCKDB_MACROS, EVIDENCE_MACROS, FUNCTIONS, View
from reliable_channel.lake.tables.views.node_logs import MESSAGE_LOGS, NODE_LOGS
from reliable_channel.lake.tables.views.participant_views import PARTICIPANT_VIEWS, participant_views_sql
from reliable_channel.lake.tables.views.peer_formats import PEER_FORMATS

__all__ = ["DUCKDB_MACROS", "EVIDENCE_MACROS", "FUNCTIONS", "QUERYABLE", "VIEWS", "View", "participant_views_sql"]

VIEWS: dict[str, View] = {
    view.name: view for view in (MESSAGES, DISPATCHES, PEER_FORMATS, PARTICIPANT_VIEWS, NODE_LOGS, MESSAGE_LOGS)
}
"""All views by name."""

QUERYABLE: dict[str, View | Table] = {**VIEWS, **BY_NAME}
"""What a query can name: the views, then the tables in the order of the data flow."""
