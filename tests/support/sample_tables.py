"""A small set of real Delta tables with one of everything, written without Spark: for tests of what reads tables.

The story: an hour from ``START`` on, seen by one observer who stopped looking at ``AS_OF``.

* ``talk`` (alice, bob, carol): 60 short messages, one a minute; most arrive, some late, some only named by others.
* ``files`` (alice, bob): messages of 4 data segments, some with parity: complete, saved by parity, one short, several
  short, with a wrong hash, refused by a rate limit, never sent, stored nowhere, undecodable, undecryptable.
* ``sealed``: like talk, without stored plaintext. ``quiet``: silent for the last 50 minutes.
* channels of ``HOSTILE`` strings: markup, a formula, escape sequences, direction overrides, newlines, length.

Every row follows the schema of ``reliable_channel/lake/tables/``; ids, hashes and times agree between tables.
``sample_story.py`` tells it, ``sample_rows.py`` makes rows of it, :func:`write` makes tables of them.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from reliable_channel.lake.create import create_table
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import TABLES
from tests.support import sample_story
from tests.support.sample_rows import Story


def story() -> Story:
    """Everything that happened, as rows."""
    result = Story()
    sample_story.tell(result)
    acknowledged = defaultdict(set)
    for row in result.rows["acks"]:
        acknowledged[row["channel_id"], row["sds_id"]].add(row["acknowledged_by"])
    for row in result.rows["delivery_status"]:
        row["acknowledged_by"] = sorted(
            set().union(*(acknowledged[row["channel_id"], sds_id] for sds_id in row["sds_ids"]))
        )
    return result


def write(place: Path, content: Story | None = None) -> Story:
    """Write every table of the pipeline under ``place``, those without rows empty; returns what is in them."""
    content = content or story()
    for table in TABLES:
        target = place / table.name
        create_table(target, table)
        rows = content.rows.get(table.name, [])
        unknown = {name for row in rows for name in row} - set(table.names())
        assert not unknown, (table.name, unknown)
        if rows:
            complete = [{name: row.get(name) for name in table.names()} for row in rows]
            write_deltalake(str(target), pa.Table.from_pylist(complete, schema=arrow_schema(table)), mode="append")
    return content
