"""Refuses to start a query if its settings differ from its checkpoint's, or its tables are gone or of another time.

Spark silently keeps the checkpoint's number of shuffle partitions and state store provider, and does not notice another
topic or participant. So the settings are stored in the checkpoint (``reliable-channel.json``, deleted together with it)
and compared at every start (docs/operations.md). So are the names of the query's tables, because it would silently
continue with new, empty tables in place of deleted ones. A table that was restored from an older copy than the
checkpoint, or the reverse, is recognised by the micro-batches and versions that both record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress

from deltalake import DeltaTable

from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.lake.checkpoints import Checkpoint, read_checkpoint, read_record, write_record
from reliable_channel.lake.read import holds_rows, open_at, quote, select
from reliable_channel.lake.restored import ELSEWHERE, REBUILD
from reliable_channel.lake.tables import CLOCK, DELIVERIES, ENVELOPES, ORDERED_SDS_MESSAGES, Table
from reliable_channel.pipeline.ack import channel_state
from reliable_channel.pipeline.maintenance.maintain_plan import STREAM_READERS
from reliable_channel.pipeline.reassembly import sets
from reliable_channel.pipeline.verdict.position import read_last_position, refuse_older_tables

_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_IN_SPARK = {"spark.shuffle_partitions": "spark.sql.shuffle.partitions", f"spark.conf.{_PROVIDER}": _PROVIDER}
"""Our key → the key under which Spark stores it in the offset log. They matter only for queries with state."""

_STATE_VERSIONS = {"reassembly": sets.STATE_VERSION, "ack": channel_state.STATE_VERSION}
"""Query → the version of the state that this program writes."""

_STATE_VERSION = "state_version"
"""The key in the record for the version of a query's own state, if it has one."""

_TABLES = "tables"
"""The key in the record for the names of the query's tables."""

_WRITES = {"ingest": CLOCK, "reassembly": ORDERED_SDS_MESSAGES, "ack": DELIVERIES}
"""A table that only this query writes, and that has rows if any of its tables has."""

SPARK_KEYS = (*_IN_SPARK.values(),)
"""The session settings that are compared."""


def list_frozen_settings(settings: Settings, query: str, spark_conf: Mapping[str, str]) -> dict[str, str]:
    """The settings on which a new checkpoint of ``query`` depends, by configuration key.

    ``spark_conf`` has the session's values, which override the configuration under ``spark-submit``."""
    frozen = {key: spark_conf[name] for key, name in _IN_SPARK.items() if name in spark_conf}
    if query == "ingest":
        frozen["kafka.topics.envelopes"] = settings.kafka.topics.envelopes
    if query == "ack":
        frozen["channels.participant_id"] = settings.channels.participant_id or ""
    if query in _STATE_VERSIONS:
        frozen[_STATE_VERSION] = str(_STATE_VERSIONS[query])
    return frozen


def read_recorded_settings(paths: PathSettings, checkpoint: Checkpoint) -> dict[str, str]:
    """The settings of the checkpoint: our record, overridden by Spark's own."""
    sparks = {key: checkpoint.offsets.conf[name] for key, name in _IN_SPARK.items() if name in checkpoint.offsets.conf}
    settings = read_record(paths, checkpoint.query) | sparks
    topics = list(checkpoint.offsets.kafka)
    return settings | ({"kafka.topics.envelopes": topics[0]} if topics else {})


def find_disagreement(query: str, stateful: bool, recorded: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """The first setting that differs, as one sentence, or ``None``. A setting that was not recorded counts as equal."""
    for key, now in wanted.items():
        if key in (_STATE_VERSION, _TABLES):
            continue
        then = recorded.get(key, now)
        if then != now and (stateful or key not in _IN_SPARK):
            made = f"The checkpoint of {query} was made with {key}={_format_value(then)}"
            return f"{made}, and the configuration says {_format_value(now)}."
    return None


def check(settings: Settings, query: str, spark_conf: Mapping[str, str], tables: Iterable[Table] = ()) -> None:
    """Compare the checkpoint of ``query`` with the configuration and with its ``tables``, and record the settings of a
    new one. Call it before tables are created.

    Raises ``ConfigurationError``, so that the query does not start, if they differ, if another version wrote the state,
    or if one of the checkpoint's tables is missing. Reads two small files, and opens each table."""
    provider = spark_conf.get(_PROVIDER, "")
    if query == "ack" and provider.endswith("HDFSBackedStateStoreProvider"):  # transformWithState refuses it, later
        raise ConfigurationError(
            f"The query ack keeps its state in RocksDB, and {_PROVIDER} is {_format_value(provider)}.",
            "Leave this setting out of Spark's configuration.",
        )
    wanted = list_frozen_settings(settings, query, spark_conf)
    wanted[_TABLES] = " ".join(table.name for table in tables)
    checkpoint = read_checkpoint(settings.paths, query)
    recorded: dict[str, str] = {}
    if checkpoint is None:
        _refuse_to_write_again(settings.paths, query)
    else:
        _refuse_incomplete(checkpoint)
        recorded = read_recorded_settings(settings.paths, checkpoint)
        if not checkpoint.operators:
            recorded.pop(_STATE_VERSION, None)  # of a version that was killed before it wrote state; this one does
        # First: no setting that is set back helps.
        elif recorded.get(_STATE_VERSION) != wanted.get(_STATE_VERSION):
            raise ConfigurationError(
                f"The checkpoint of {query} was made by another version of this program, whose state it cannot read.",
                f"Run that version, or {REBUILD}",
            )
        sentence = find_disagreement(query, checkpoint.operators > 0, recorded, wanted)
        if sentence is not None:
            raise ConfigurationError(sentence, f"Set it back, or {REBUILD}")
        if checkpoint.committed is not None:
            refuse_other_copies(settings.paths, checkpoint, tables, recorded.get(_TABLES, "").split())
    if wanted.keys() - recorded.keys():
        # What is recorded stays: it is of the checkpoint's time, and has keys of others (recreated_topic.py).
        write_record(settings.paths, query, {**wanted, **recorded})


def _refuse_to_write_again(paths: PathSettings, query: str) -> None:
    """Raise ``ConfigurationError`` if the table of a query without a checkpoint already has rows. The query would read
    everything again under a new id, and Delta would accept every row a second time."""
    table = _WRITES.get(query)
    if table is None or not holds_rows(paths, table):
        return
    remedy = f"Restore it, or {_find_remedy(query)}"
    fault = f"The query {query} has no checkpoint, but its table {table.name} has rows"
    raise ConfigurationError(f"{fault}: it would write them all again.", remedy)


def _refuse_incomplete(checkpoint: Checkpoint) -> None:
    """Raise ``ConfigurationError`` if the checkpoint lacks the id of its query, or the plan of its last micro-batch, as
    when a part of it was deleted. Spark would go on under a new id or number: the tables would take what they have for
    new, or new rows for a replay."""
    last = -1 if checkpoint.committed is None else checkpoint.committed
    lacks = "metadata" if checkpoint.query_id is None else f"offsets/{last}"
    if checkpoint.query_id is None or last > (-1 if checkpoint.planned is None else checkpoint.planned):
        raise ConfigurationError(
            f"The checkpoint of {checkpoint.query} lacks {lacks}: rows would be lost, or written again.",
            f"Restore it, or {_find_remedy(checkpoint.query)}",
        )


def _find_remedy(query: str) -> str:
    return ELSEWHERE if query == "ingest" else REBUILD


def refuse_other_copies(
    paths: PathSettings, checkpoint: Checkpoint, tables: Iterable[Table], names: Collection[str]
) -> None:
    """Raise ``ConfigurationError`` if one of ``tables`` is not of the checkpoint's time: it does not exist although it
    is one of the ``names`` that the checkpoint was made with, one of the two was restored from an older copy, or it
    belongs to other tables. Also if a table lacks rows on which verdicts were given: no checkpoint has the versions of
    all tables."""
    judged = None
    # Verdicts that cannot be read keep no job from running; their next round names them.
    with suppress(EnvironmentFault):
        judged = read_last_position(paths)
    for table in tables:
        opened = open_at(paths.table(table.name))
        if opened is not None:
            _refuse_another_time(paths, checkpoint, table, opened)
            refuse_older_tables(paths, judged, {table: opened})
        elif table.name in names:
            raise ConfigurationError(
                f"The table {table.name} was deleted, but the checkpoint of {checkpoint.query} continues after its"
                " rows.",
                f"Restore it, or {ELSEWHERE if table in (ENVELOPES, CLOCK) else REBUILD}",
            )


def _refuse_another_time(paths: PathSettings, checkpoint: Checkpoint, table: Table, opened: DeltaTable) -> None:
    query, committed = checkpoint.query, checkpoint.committed or 0
    written = opened.transaction_version(checkpoint.query_id or "")
    if written is not None and written > committed and _was_never_planned(paths, query, written):
        # Appends of the micro-batches up to ``written`` are skipped as replays, whatever rows they have.
        fault = f"The checkpoint of {query} is older than the table {table.name}: new rows would be taken for old ones."
    # An offset names the commit to read next, so it may be one above the newest.
    elif checkpoint.offsets.delta.get(str(opened.metadata().id), 0) > opened.version() + 1 or (
        # Every micro-batch of ingest writes to its clock; other tables gain rows in some only.
        table == CLOCK and written is not None and written < committed
    ):
        fault = f"The table {table.name} is older than the checkpoint of {query}: rows between them would be missing."
    elif table == CLOCK and written is not None and not opened.file_uris():  # maintenance leaves the newest rows
        raise ConfigurationError(
            f"All rows of the table {table.name}, after which the checkpoint of {query} continues, were deleted: event"
            " times could go back.",
            f"RESTORE its version before that, or {ELSEWHERE}",
        )
    elif written is None and _belongs_to_others(checkpoint, table, opened):
        raise ConfigurationError(
            f"The checkpoint of {query} belongs to other tables: rows would be missing, or written again.",
            f"Set paths.data_dir and paths.checkpoint_dir to those of one run, or {_find_remedy(query)}",
        )
    else:
        return
    raise ConfigurationError(fault, f"Restore the tables and the checkpoints of one time, or {_find_remedy(query)}")


def _belongs_to_others(checkpoint: Checkpoint, table: Table, opened: DeltaTable) -> bool:
    """Whether a table, in which no micro-batch of the checkpoint is recorded, shows that it is of another lake: it is
    not the one that the query reads, or others wrote all rows of the clock."""
    if table == CLOCK:
        # The rows, because rebuilds before 29 November 2026 kept them without the records of micro-batches.
        own = f"SELECT bool_or(query_id = {quote(checkpoint.query_id or '')}) AS own FROM clock"  # noqa: S608 - a literal
        return select(own, clock=opened)[0]["own"] is False
    read = checkpoint.offsets.delta
    return STREAM_READERS.get(table.name) == checkpoint.query and bool(read) and str(opened.metadata().id) not in read


def _was_never_planned(paths: PathSettings, query: str, batch_id: int) -> bool:
    """Whether the checkpoint does not have a micro-batch. It is read after the table, to which another driver may be
    writing."""
    newest = read_checkpoint(paths, query)
    return newest is None or newest.planned is None or newest.planned < batch_id


def _format_value(value: str) -> str:
    return value.rsplit(".", 1)[-1] if value.startswith("org.apache.") else value or "nothing"
