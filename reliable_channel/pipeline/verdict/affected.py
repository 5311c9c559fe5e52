"""Finds the verdicts that new evidence can change, and reads only the evidence about them.

A verdict depends on the evidence about all SDS ids of its message. So the ids are collected first: those in new rows,
and those of verdicts that are not settled or share an id, a key or a payload with new rows. No other ids are needed,
because a verdict lists every id of its message. The driver looks up the rows (:mod:`.lookup`), which are few.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.lake import tables
from reliable_channel.lake.schema import file_schema
from reliable_channel.lake.tables import CHANNEL_KEY, Table
from reliable_channel.pipeline.lookup import NAMING, UNSETTLED, Lookup, is_among, list_named_ids
from reliable_channel.pipeline.verdict.gather import MAX_WITNESSED, SPAN
from reliable_channel.pipeline.verdict.related import read_related
from reliable_channel.pipeline.verdict.rules import Verdict
from reliable_channel.pipeline.verdict.since_gaps import SinceGaps
from reliable_channel.pipeline.verdict.touched import Channel, Touched

Lookups = Mapping[Table, Lookup]


class Affected(NamedTuple):
    """``ids``: the SDS ids, with their channels, of all messages to judge; ``rows``: the evidence about these messages;
    ``suspected``: the ids of which an undecodable record contains one; ``verdicts``: the messages' current verdicts."""

    ids: pa.Table
    rows: dict[Table, pa.Table]
    suspected: set[str]
    verdicts: pa.Table


def find_affected(
    look_up: Lookups, touched: Touched, since_gaps: SinceGaps | None, since: dt.datetime
) -> Affected | None:
    """Find the messages whose verdicts may change after evidence about ``touched``; ``None`` if there are none.

    Verdicts on messages first seen before ``since`` are left out. ``since_gaps``: there are gaps, so new messages show
    when missing ones were sent."""
    ids = {*touched.ids, *_find_linked(look_up, touched, since_gaps)}
    texts = {*touched.texts, *(sds_id for _, sds_id in ids)}
    verdicts = _read_verdicts(look_up, texts, touched)
    verdicts = verdicts.filter(pc.greater_equal(verdicts["first_seen"], since))
    ids.update(_list_ids(verdicts))
    if not ids:
        return None
    payloads = {*touched.payloads, *verdicts["entire_message_hash"].drop_null().to_pylist()}

    def read(table: Table, columns: Sequence[str], values: Collection[str | bytes], where: pc.Expression) -> pa.Table:
        if table is tables.SDS_MESSAGES:
            return look_up[table].messages(columns, values, where, MAX_WITNESSED)
        return look_up[table].rows(columns, values, where)

    names = {sds_id for _, sds_id in ids}
    rows = read_related(read, look_up[tables.SDS_MESSAGES].find_naming, names, payloads)
    suspected = look_up[tables.QUARANTINE].find_suspected(names)
    sds_ids = pa.array([sds_id for _, sds_id in ids], pa.string())
    return Affected(_make_table([channel for channel, _ in ids], sds_id=sds_ids), rows, suspected, verdicts)


def select_naming(
    verdicts: pa.Table, texts: Set[str], payloads: Set[bytes], spans: Set[int], undelivered: bool
) -> pa.Table:
    """The verdicts that are not settled, contain one of the ids or keys ``texts``, or have one of the payloads, if they
    are not *delivered* or segments with Lamport timestamps in ``spans`` may belong to them; ``undelivered``: and all
    others that are not *delivered*.

    One payload may be sent any number of times, such as a sign of life, so a payload alone selects too many."""
    keys = pa.array(sorted(texts), pa.string())
    names = verdicts["sds_ids"].combine_chunks()
    named = pc.list_parent_indices(names).filter(pc.is_in(pc.list_flatten(names), keys))
    wanted = pc.is_in(pa.array(range(verdicts.num_rows)), named)
    wanted = pc.or_(wanted, pc.is_in(verdicts["message_key"], keys))
    has_payload = pc.is_in(verdicts["entire_message_hash"], pa.array(sorted(payloads), pa.binary()))
    is_open = pc.fill_null(_is_undelivered(verdicts), True)
    wanted = pc.or_(wanted, pc.and_(has_payload, pc.or_(is_open, _is_within(verdicts["message_key"], spans))))
    wanted = pc.or_kleene(wanted, pc.invert(verdicts["settled"]))
    return verdicts.filter(pc.or_kleene(wanted, _is_undelivered(verdicts)) if undelivered else wanted)


def _is_within(keys: pa.ChunkedArray, spans: Set[int]) -> pa.ChunkedArray:
    """Whether segments with Lamport timestamps in ``spans`` may be of the delivered messages with these keys, which end
    in the Lamport timestamp of the first segment; true where a key has none."""
    lamport = pc.struct_field(pc.extract_regex(keys, r"^[^-]*-(?P<lamport>[0-9]{1,18})$"), "lamport")
    span = pc.divide(lamport.cast(pa.int64()), SPAN)
    return pc.or_(pc.is_null(span), pc.is_in(span, pa.array(sorted(spans | {one - 1 for one in spans}), pa.int64())))


def count_undelivered(look_up: Lookup) -> int:
    """The number of verdicts that are not *delivered*."""
    return sum(pc.sum(_is_undelivered(rows)).as_py() or 0 for rows in look_up.iterate(("verdict",), None))


def _is_undelivered(verdicts: pa.Table) -> pa.ChunkedArray:
    return pc.not_equal(verdicts["verdict"], Verdict.DELIVERED.value)


def _read_verdicts(look_up: Lookups, texts: Set[str], touched: Touched) -> pa.Table:
    """All verdicts that :func:`select_naming` selects."""
    status, payloads = tables.DELIVERY_STATUS, touched.payloads
    pieces = look_up[status].iterate(status.names(), None if touched.silence else [*texts, *payloads, UNSETTLED])
    selected = (select_naming(rows, texts, payloads, touched.spans, touched.silence) for rows in pieces)
    return pa.concat_tables([file_schema(status).empty_table(), *selected], promote_options="default")


def _list_ids(rows: pa.Table) -> Iterable[tuple[Channel, str]]:
    """The ids listed in rows, with their channels."""
    columns = [rows[name].to_pylist() for name in (*CHANNEL_KEY, "sds_ids")]
    for *channel, ids in zip(*columns, strict=True):
        yield from ((tuple(channel), sds_id) for sds_id in ids or () if sds_id is not None)


def _find_linked(look_up: Lookups, touched: Touched, since_gaps: SinceGaps | None) -> Iterable[tuple[Any, str]]:
    """The ids that earlier rows link to new ones, and missing ids whose time of sending new messages narrow down."""

    def find_ids(table: Table, values: Set[Any], where: pc.Expression, *compared: str) -> Iterable[tuple[Channel, str]]:
        return _list_with_channels(look_up[table].rows((*CHANNEL_KEY, "sds_id", *compared), values, where))

    if touched.rebuilt:
        payloads = {payload for payload, _ in touched.rebuilt}
        at = pa.array(sorted({offset for _, offset in touched.rebuilt}))
        where = is_among("entire_message_hash", payloads) & pc.field("kafka_offset").isin(at)
        columns = (*CHANNEL_KEY, "sds_ids", "entire_message_hash", "kafka_offset")
        yield from _list_ids(look_up[tables.REASSEMBLED_MESSAGES].rows(columns, payloads, where))
    if touched.envelopes:
        where = is_among("envelope_hash", touched.envelopes) & pc.field("sds_id").is_valid()
        yield from find_ids(tables.SENDER_EVENTS, touched.envelopes, where, "envelope_hash")
    if touched.ids:
        new = {sds_id for _, sds_id in touched.ids}
        # The further segments of what its sender recorded.
        where = is_among("send_id", new) & pc.field("sds_id").is_valid()
        yield from find_ids(tables.SENDER_EVENTS, new, where, "send_id")
        # What a message names is witnessed once somebody acknowledges the message.
        messages = look_up[tables.SDS_MESSAGES].messages(NAMING, new, is_among("sds_id", new), MAX_WITNESSED)
        named = {*list_named_ids(messages["causal_history"].combine_chunks()).drop_null().to_pylist()}
        lost = [*find_ids(tables.LOST_DEPENDENCIES, named | new, is_among("sds_id", named | new))]
        yield from lost
        # What is missing may belong to the message of a segment that names it.
        namers = look_up[tables.SDS_MESSAGES].find_naming(new.intersection(sds_id for _, sds_id in lost))
        where = is_among("sds_id", namers) & (pc.field("segment_kind") != "bare")
        yield from find_ids(tables.SDS_MESSAGES, namers, where, "segment_kind")
    if since_gaps is not None and touched.lamport:
        least = _make_table([*touched.lamport], least=pa.array(touched.lamport.values(), pa.int64()))
        yield from _list_with_channels(since_gaps.find_surrounded(least, _make_new_ids(touched)))


def _list_with_channels(rows: pa.Table) -> Iterable[tuple[Channel, str]]:
    for *channel, sds_id in zip(*(rows[name].to_pylist() for name in (*CHANNEL_KEY, "sds_id")), strict=True):
        yield tuple(channel), sds_id


def _make_new_ids(touched: Touched) -> pa.Table:
    return pa.table({"new_id": pa.array(sorted({sds_id for _, sds_id in touched.ids}), pa.string())})


def _make_table(channels: Sequence[Channel], **columns: pa.Array) -> pa.Table:
    """A table of ``columns`` with their channels."""
    keys = [pa.array(names, pa.string()) for names in zip(*channels, strict=True)] or [pa.array([], pa.string())] * 3
    return pa.table({**dict(zip(CHANNEL_KEY, keys, strict=True)), **columns})
