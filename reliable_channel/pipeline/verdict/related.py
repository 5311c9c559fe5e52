"""Reads the evidence about some messages, with all that a verdict on them compares it with. No Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence, Set

import pyarrow as pa
import pyarrow.compute as pc

from reliable_channel.lake import tables
from reliable_channel.lake.tables import Table
from reliable_channel.pipeline.lookup import is_among
from reliable_channel.pipeline.verdict.gather import READ

ReadRelated = Callable[[Table, Sequence[str], Collection[str | bytes], pc.Expression], pa.Table]
"""Reads at least some columns of the rows ``where`` of a table; all of these contain one of some values."""


def read_related(
    read: ReadRelated, find_naming: Callable[[Set[str]], Set[str]], ids: Set[str], payloads: Set[bytes]
) -> dict[Table, pa.Table]:
    """At least the rows of evidence about ``ids``, and those that they are compared with: about the same payloads, and
    about the envelopes that senders name. ``find_naming``: ids → the ids of the messages whose histories name one."""
    related: dict[Table, pa.Table] = {}

    def view(table: Table, values: Collection[str | bytes], where: pc.Expression) -> pa.Table:
        related[table] = read(table, READ[table], values, where)
        return related[table]

    by_id = is_among("sds_id", ids)
    view(tables.REPAIR_REQUESTS, ids, by_id)
    view(tables.CHANNEL_EVENTS, ids, by_id)
    lost = view(tables.LOST_DEPENDENCIES, ids, by_id)
    namers = find_naming({*lost["sds_id"].to_pylist()})
    with_namers = is_among("sds_id", ids | namers)
    view(tables.ACKS, ids | namers, with_namers)
    messages = view(tables.SDS_MESSAGES, ids | namers, with_namers)
    segments = messages.filter(pc.not_equal(messages["segment_kind"], "bare"))
    events = view(tables.SENDER_EVENTS, ids | namers, with_namers)
    for rows in (segments, events):
        payloads = {*payloads, *rows["entire_message_hash"].drop_null().to_pylist()}
    by_payload = is_among("entire_message_hash", payloads)
    for table in (tables.REASSEMBLED_MESSAGES, tables.INCOMPLETE_MESSAGES):
        view(table, payloads, by_payload)
    rebuilt = pc.field("segment_kind").is_null()
    view(tables.DELIVERIES, {*ids, *payloads}, (by_payload & rebuilt) | (by_id & ~rebuilt))
    envelopes = {*events["envelope_hash"].drop_null().to_pylist()}
    by_envelope = is_among("message_hash", envelopes)
    view(tables.SIGHTINGS, envelopes, by_envelope)
    view(tables.STORE_PRESENCE, {*ids, *envelopes}, by_envelope | by_id)
    view(tables.QUARANTINE, envelopes, by_envelope)
    return related
