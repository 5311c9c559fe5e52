"""Which verdicts a round looks at again."""

from __future__ import annotations

import pyarrow as pa

from reliable_channel.lake import tables
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.verdict.affected import select_naming

PAYLOAD = b"p" * 32
ROWS = [
    {"message_key": "by id", "sds_ids": ["x", "wanted"]},
    {"message_key": "two of its ids", "sds_ids": ["wanted", "wanted too"]},
    {"message_key": "wanted key", "sds_ids": ["y"]},
    {"message_key": "by payload", "sds_ids": [], "entire_message_hash": PAYLOAD},
    {"message_key": "70-1023", "sds_ids": [], "entire_message_hash": PAYLOAD},
    {"message_key": "70-9", "sds_ids": [], "entire_message_hash": PAYLOAD, "verdict": "missing"},
    {"message_key": "open", "sds_ids": None, "settled": False},
    {"message_key": "70-767", "sds_ids": [], "entire_message_hash": PAYLOAD},
    {"message_key": "70-1536", "sds_ids": [], "entire_message_hash": PAYLOAD},
    {"message_key": "another", "sds_ids": ["z"], "entire_message_hash": b"q" * 32},
    {"message_key": "missing", "sds_ids": ["m"], "verdict": "missing"},
    {"message_key": "says nothing of being settled", "sds_ids": None, "settled": None},
]


def chosen(texts: set[str], payloads: set[bytes], undelivered: bool = False) -> list[str]:
    columns = ["message_key", "sds_ids", "entire_message_hash", "settled", "verdict"]
    given = [{"settled": True, "verdict": "delivered", **row} for row in ROWS]
    rows = as_arrow(given, tables.DELIVERY_STATUS).select(columns)
    pieces = pa.concat_tables([rows.slice(0, 3), rows.slice(0, 0), rows.slice(3)])
    return [str(key) for key in select_naming(pieces, texts, payloads, {4}, undelivered)["message_key"].to_pylist()]


def test_by_id_key_or_payload_and_those_that_are_open() -> None:
    assert chosen({"wanted", "wanted too", "wanted key"}, {PAYLOAD}) == [row["message_key"] for row in ROWS[:7]]


def test_nothing_new_leaves_those_that_are_open() -> None:
    assert chosen(set(), set()) == ["open"]


def test_other_times_without_a_bridge_lead_to_all_that_are_not_delivered() -> None:
    assert chosen(set(), set(), undelivered=True) == ["70-9", "open", "missing"]
