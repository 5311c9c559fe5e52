"""Collects the evidence about one message from the tables: what its verdict was derived from, the causal chain, the raw
envelopes, and what stores, senders and bridges say of them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import reduce
from itertools import pairwise
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError

from reliable_channel import __version__
from reliable_channel.analysis import text
from reliable_channel.analysis.bundle.archive import MAX_BYTES, write_bundle, write_time
from reliable_channel.analysis.report.investigate import find_judged
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.lake import tables
from reliable_channel.lake.commit import data_files
from reliable_channel.lake.follow import LONG_ROWS, iterate_rows
from reliable_channel.lake.read import in_our_time, public_dataset
from reliable_channel.lake.schema import as_arrow, file_schema
from reliable_channel.lake.tables import CHANNEL_KEY, RECORD_KEY, Table
from reliable_channel.pipeline.lookup import NAMING, UNDECODED, is_among, list_named_ids, list_naming, search_ids
from reliable_channel.pipeline.verdict.gaps import Span, find_silence, read_open_gaps
from reliable_channel.pipeline.verdict.judge import make_filter
from reliable_channel.pipeline.verdict.position import find_position
from reliable_channel.pipeline.verdict.related import read_related
from reliable_channel.pipeline.verdict.touched import REMEMBERED_MS

MAX_ENVELOPE_BYTES = MAX_BYTES // 2
"""The bytes of envelopes in a bundle: those of the message itself first."""
ENOUGH_UNDECODABLE = 100
"""The refused records after which a bundle takes no more undecodable ones. One of them is evidence enough, and a
stranger can repeat an id in any number."""
BLANK, FROM_PLAINTEXT = ("value", "payload"), ("content", "bloom_filter")
"""Columns that a bundle leaves empty, because they follow from the envelopes; the latter only where nothing is
encrypted."""

Found = dict[Table, pa.Table]


def collect(settings: Settings, wanted: str) -> bytes:
    """The bundle of the message with this name (:func:`find_judged`): the bytes of its file, the same for the same
    tables. Raises ``LocalError`` if no message or several are meant, and ``EnvironmentFault`` if there are no
    tables."""
    newest = TableSnapshot(settings.paths)
    newest.require_any()
    try:
        return _collect(settings, _open_round(settings.paths, newest), wanted)
    except FileNotFoundError:
        # VACUUM removed what the last round read. Had there been news of a message since, a round would have read anew.
        return _collect(settings, newest.newest(), wanted)


def _collect(settings: Settings, lake: TableSnapshot, wanted: str) -> bytes:
    """The bundle from the tables as they are in ``lake``. Raises ``FileNotFoundError`` if VACUUM has removed a file."""
    status = _find_status(lake, wanted)
    silent = _find_silence(settings, lake, (status["pubsub_topic"], status["content_topic"]))
    rows_by_table = _read_rows(settings.paths, lake, status, bool(silent))
    envelopes = _pack_envelopes(
        rows_by_table[tables.ENVELOPES], rows_by_table[tables.SDS_MESSAGES], {*status["sds_ids"]}
    )
    observer = _describe_observer(settings, lake, status, silent)
    about = {
        "program": f"reliable-channel {__version__}",
        "message": {name: status[name] for name in (*CHANNEL_KEY, "message_key")},
        "tables": {
            table.name: {"id": str(opened.metadata().id), "version": opened.version(), "columns": table.ddl()}
            for table in rows_by_table
            if (opened := lake.table(table.name)) is not None
        },
        "observer": observer,
        "envelopes_left_out": len({*_list_values(rows_by_table[tables.ENVELOPES], "message_hash")} - envelopes.keys()),
    }
    topic = observer["topic"]
    blank = BLANK if topic and topic["keyed"] else (*BLANK, *FROM_PLAINTEXT)
    return write_bundle(about, {table: _leave_empty(rows, blank) for table, rows in rows_by_table.items()}, envelopes)


def _open_round(paths: PathSettings, lake: TableSnapshot) -> TableSnapshot:
    """The tables at the versions from which the last round of verdicts was derived. Raises ``EnvironmentFault`` if one
    is gone."""
    status = lake.table(tables.DELIVERY_STATUS.name)
    position = None if status is None else find_position(paths, status)
    for name, (table_id, version) in position.read.items() if position else ():
        opened = lake.table(name)
        if opened is not None and str(opened.metadata().id) == table_id and opened.version() > version:
            try:
                opened.load_as_version(version)
            except DeltaError as error:
                raise EnvironmentFault(
                    f"The table {name} no longer has version {version}, from which the verdicts were derived.",
                    "Derive them again: `reliable-channel run --once --verdicts`.",
                ) from error
    return lake


def _find_status(lake: TableSnapshot, wanted: str) -> dict[str, Any]:
    """The row of ``delivery_status``."""
    first, *others = find_judged(lake, wanted)
    if others and first.message_key != wanted:
        raise LocalError(f"Several messages have the id {text.name(wanted)}.", "Give more of it.")
    return lake.select(
        f"SELECT * FROM delivery_status WHERE message_key = $key AND {first.channel.where()}",  # noqa: S608 - names of columns
        {"key": first.message_key, **first.channel.parameters},
    )[0]


def _find_silence(settings: Settings, lake: TableSnapshot, topic: tuple[str, str]) -> list[Span]:
    """The times in which no bridge listened to the topic."""
    silence = find_silence(read_open_gaps(settings.paths), lake.select)
    return silence.by_topic.get(topic, [gap.span for gap in silence.gaps])


def _describe_observer(
    settings: Settings, lake: TableSnapshot, status: Mapping[str, Any], silent: Sequence[Span]
) -> dict[str, Any]:
    """What a verdict depends on that is in no row of evidence."""
    pubsub_topic, content_topic = status["pubsub_topic"], status["content_topic"]
    topic = settings.channels.topic_for(content_topic, pubsub_topic)
    (last,) = lake.select("SELECT max(as_of) AS as_of FROM delivery_status")
    followed = make_filter(settings.channels, frozenset(settings.bridge.content_topics))
    return {
        "settle_delay_ms": settings.pipeline.settle_delay_ms,
        "asks_stores": bool(settings.store.nodes),
        "followed": followed(pubsub_topic, content_topic),
        "silent": [[write_time(span.since), write_time(span.until)] for span in silent],
        "evidence_since": write_time(last["as_of"] - dt.timedelta(milliseconds=REMEMBERED_MS)),
        "codec": settings.segmentation.codec,
        "topic": topic
        and {
            "family": str(topic.family),
            "dialects": sorted(dialect.value for dialect in topic.dialects),
            "keyed": bool(topic.decryption_key_files),
            "encryption_layer": str(topic.encryption_layer),
            "store_plaintext": topic.store_plaintext,
        },
    }


def _read_rows(paths: PathSettings, lake: TableSnapshot, status: Mapping[str, Any], in_gaps: bool) -> Found:
    """The rows of all tables about the message, only of its channel."""
    same = [(pc.field(name) == status[name]) | pc.field(name).is_null() for name in CHANNEL_KEY]
    of_channel = reduce(and_, same)

    def iterate_messages(columns: Sequence[str]) -> Iterator[pa.Table]:
        opened = lake.table(tables.SDS_MESSAGES.name)
        yield from iterate_rows(paths, tables.SDS_MESSAGES, data_files(opened) if opened else (), columns)

    def find_naming(ids: Set[str]) -> Set[str]:
        return set().union(*(list_naming(rows, ids) for rows in iterate_messages(NAMING))) if ids else set()

    def read(table: Table, _: Sequence[str], values: Collection[Any], where: pc.Expression) -> pa.Table:
        opened = lake.table(table.name)
        if opened is None or not values or table is tables.QUARANTINE:  # read when all hashes are known
            return file_schema(table).empty_table()
        where = where & of_channel if "channel_id" in table.names() else where
        dataset = public_dataset(opened)
        rows = dataset.to_table([name for name in table.names() if name in dataset.schema.names], filter=where)
        return as_arrow(in_our_time(rows).to_pylist(), table)

    def about(table: Table, column: str, values: Set[Any]) -> pa.Table:
        return read(table, (), values, is_among(column, values))

    ids = {*status["sds_ids"]}
    payloads = {*filter(None, [status["entire_message_hash"]])}
    rows_by_table = read_related(read, find_naming, ids, payloads)
    chain = {
        *_list_values(rows_by_table[tables.SDS_MESSAGES], "sds_id"),
        *_list_values(rows_by_table[tables.ACKS], "evidence_sds_id"),
        *ids,
    }
    chain |= {*list_named_ids(rows_by_table[tables.SDS_MESSAGES]["causal_history"].combine_chunks()).to_pylist()}
    if in_gaps:
        namers = {*_list_values(rows_by_table[tables.LOST_DEPENDENCIES], "needed_by")}
        order = iterate_messages(("sds_id", "sds_kind", "sender_id", "lamport_timestamp", *CHANNEL_KEY))
        content = of_channel & (pc.field("sds_kind") == "content")
        chain |= _list_previous((row for rows in order for row in rows.filter(content).to_pylist()), namers)
    messages = rows_by_table[tables.SDS_MESSAGES] = about(tables.SDS_MESSAGES, "sds_id", chain - {None})
    for table in (tables.REFETCH_REQUESTS, tables.CHANNEL_EVENTS):
        rows_by_table[table] = about(table, "sds_id", ids)
    rows_by_table[tables.DELIVERED_MESSAGES] = about(tables.DELIVERED_MESSAGES, "entire_message_hash", payloads)
    hashes = {
        *_list_values(messages, "envelope_hash"),
        *_list_values(rows_by_table[tables.SENDER_EVENTS], "envelope_hash"),
    }
    refused = rows_by_table[tables.QUARANTINE] = _read_refused(lake, hashes, ids)
    hashes |= {*_list_values(refused, "message_hash")}
    rows_by_table[tables.SIGHTINGS] = about(tables.SIGHTINGS, "message_hash", hashes)
    rows_by_table[tables.ENVELOPES] = about(tables.ENVELOPES, "message_hash", hashes).sort_by(
        [(n, "ascending") for n in RECORD_KEY]
    )
    rows_by_table[tables.DELIVERY_STATUS] = as_arrow([status], tables.DELIVERY_STATUS)
    return rows_by_table


def _read_refused(lake: TableSnapshot, hashes: Set[bytes], ids: Set[str]) -> pa.Table:
    """The refused records of some envelopes, and undecodable ones that seem to be messages with one of ``ids``: the
    first :data:`ENOUGH_UNDECODABLE`."""
    kept: list[dict[str, Any]] = []
    if (opened := lake.table(tables.QUARANTINE.name)) is not None:
        dataset = public_dataset(opened)
        names = [name for name in tables.QUARANTINE.names() if name in dataset.schema.names]
        where = is_among("message_hash", hashes) | pc.field("stage").isin(UNDECODED)
        # A few at a time: these are the undecodable records of all channels, up to 64 KiB each, and few are kept.
        for batch in dataset.to_batches(names, filter=where, batch_size=LONG_ROWS):
            columns = [batch[name].to_pylist() for name in ("message_hash", "stage", "raw")]
            suspects = ids if len(kept) < ENOUGH_UNDECODABLE else frozenset()
            of_message = [
                digest in hashes or not suspects.isdisjoint(search_ids(stage, raw))
                for digest, stage, raw in zip(*columns, strict=True)
            ]
            kept += in_our_time(batch.filter(pa.array(of_message, pa.bool_()))).to_pylist()
    return as_arrow(kept, tables.QUARANTINE)


def _list_previous(messages: Iterable[Mapping[str, Any]], namers: Set[str]) -> set[str]:
    """The content that the sender of each of ``namers`` sent before it: a missing message that it names is younger."""
    order = sorted((m["sender_id"], m["lamport_timestamp"], m["sds_id"]) for m in messages if m["lamport_timestamp"])
    return {before[2] for before, after in pairwise(order) if after[2] in namers and before[0] == after[0]}


def _pack_envelopes(envelopes: pa.Table, messages: pa.Table, ids: Set[str]) -> dict[bytes, bytes]:
    """Raw envelopes by message hash, those of the SDS messages ``ids`` first. Of copies that differ only in what the
    hash does not cover, the first one."""
    own = {*_list_values(messages.filter(is_among("sds_id", ids)), "envelope_hash")}
    rows = zip(envelopes["message_hash"].to_pylist(), envelopes["value"].to_pylist(), strict=True)
    packed: dict[bytes, bytes] = {}
    room = MAX_ENVELOPE_BYTES
    for digest, value in sorted(rows, key=lambda row: row[0] not in own):
        if value is not None and digest not in packed and len(value) <= room:
            packed[digest], room = value, room - len(value)
    return packed


def _list_values(rows: pa.Table, column: str) -> list[Any]:
    """The values of a column, without nulls."""
    values: list[Any] = rows[column].drop_null().to_pylist()
    return values


def _leave_empty(rows: pa.Table, columns: Collection[str]) -> pa.Table:
    """``rows`` with these columns empty."""
    for at, field in enumerate(rows.schema):
        if field.name in columns:
            rows = rows.set_column(at, field, pa.nulls(rows.num_rows, field.type))
    return rows
