"""The questions of the delivery notebook as SQL over the Delta tables, without Spark: each gives one small DataFrame.

Times are UTC; latencies are ms. DuckDB reads the Arrow datasets that ``deltalake`` opens, so only the needed columns
are read.
"""

from __future__ import annotations

from pathlib import Path

import duckdb
import pandas as pd
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from reliable_channel.errors import EnvironmentFault


def query(data_dir: str | Path, sql: str, *tables: str) -> pd.DataFrame:
    """Run ``sql`` over the named tables under ``data_dir``. Raises :class:`EnvironmentFault` when one is not there."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name in tables:
        place = f"{str(data_dir).rstrip('/')}/{name}"
        try:
            connection.register(name, DeltaTable(place).to_pyarrow_dataset())
        except TableNotFoundError as error:
            raise EnvironmentFault(
                f"There is no Delta table at {place}.", "Run the pipeline or `make demo` first."
            ) from error
    frame: pd.DataFrame = connection.execute(sql).df()
    return frame


def delivery_by_channel(data_dir: str | Path) -> pd.DataFrame:
    """Per channel: messages delivered, how many of them with rebuilt segments or late, sets that stayed incomplete,
    and dependencies that are lost."""
    return query(
        data_dir,
        """
        WITH lost AS (SELECT channel_id, sds_id FROM lost_dependencies GROUP BY ALL
                      HAVING bool_or(status = 'lost') AND NOT bool_or(status = 'recovered')),
             channels AS (SELECT channel_id FROM delivered_messages UNION SELECT channel_id FROM incomplete_messages)
        SELECT channel_id,
               (SELECT count(*) FROM delivered_messages d WHERE d.channel_id = c.channel_id) AS delivered,
               (SELECT count(*) FROM delivered_messages d
                 WHERE d.channel_id = c.channel_id AND d.repaired_segments > 0) AS repaired,
               (SELECT count(*) FROM delivered_messages d WHERE d.channel_id = c.channel_id AND d.late) AS late,
               (SELECT count(*) FROM incomplete_messages i WHERE i.channel_id = c.channel_id) AS incomplete,
               (SELECT count(*) FROM lost l WHERE l.channel_id = c.channel_id) AS lost_dependencies
        FROM channels c ORDER BY channel_id
        """,
        "delivered_messages",
        "incomplete_messages",
        "lost_dependencies",
    )


def deliveries_over_time(data_dir: str | Path, seconds: int = 15) -> pd.DataFrame:
    """Messages delivered per channel in bins of ``seconds``, by event time."""
    return query(
        data_dir,
        f"""
        SELECT time_bucket(INTERVAL {int(seconds)} SECOND, event_time) AS time, channel_id, count(*) AS messages
        FROM delivered_messages GROUP BY ALL ORDER BY ALL
        """,  # noqa: S608  the only value in it is an integer
        "delivered_messages",
    )


def delivery_latency(data_dir: str | Path) -> pd.DataFrame:
    """One row per delivered message: ms from the sender's own timestamp to its delivery here, its size in bytes, and
    whether parity helped. The sender's clock is its word, so the difference may be any 65-bit number of ns."""
    return query(
        data_dir,
        """
        SELECT channel_id, payload_bytes, coalesce(repaired_segments, 0) > 0 AS repaired,
               (epoch_ns(event_time)::HUGEINT - sender_timestamp_ns) / 1e6 AS latency_ms
        FROM delivered_messages WHERE sender_timestamp_ns IS NOT NULL ORDER BY ALL
        """,
        "delivered_messages",
    )


def losses(data_dir: str | Path) -> pd.DataFrame:
    """Every message that was given up: incomplete sets with what they lack, and lost dependencies nobody resolved."""
    return query(
        data_dir,
        """
        WITH lost AS (SELECT channel_id, sds_id, min(event_time) AS time FROM lost_dependencies GROUP BY ALL
                      HAVING bool_or(status = 'lost') AND NOT bool_or(status = 'recovered'))
        SELECT event_time AS time, channel_id, 'incomplete message' AS what, sender_id AS sender,
               'has ' || len(data_held) || ' of ' || coalesce(data_count::VARCHAR, '?') || ', missing '
                   || coalesce(array_to_string(data_missing, ', '), '?') AS detail
        FROM incomplete_messages
        UNION ALL SELECT time, channel_id, 'lost dependency', NULL, sds_id FROM lost
        ORDER BY ALL
        """,
        "incomplete_messages",
        "lost_dependencies",
    )


def acknowledgement_latency(data_dir: str | Path) -> pd.DataFrame:
    """The first acknowledgement of each SDS message by each participant: ms since it was first seen here, and the
    evidence it rests on."""
    return query(
        data_dir,
        """
        SELECT channel_id, arg_min(evidence, latency_ms) AS evidence, arg_min(certainty, latency_ms) AS certainty,
               min(latency_ms) AS latency_ms
        FROM acks WHERE latency_ms IS NOT NULL GROUP BY channel_id, sds_id, acknowledged_by ORDER BY ALL
        """,
        "acks",
    )


def quarantine_reasons(data_dir: str | Path) -> pd.DataFrame:
    """How many records were refused, by stage and reason."""
    return query(
        data_dir,
        "SELECT stage, reason, count(*) AS records FROM quarantine GROUP BY ALL ORDER BY records DESC, reason",
        "quarantine",
    )
