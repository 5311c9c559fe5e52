"""Rows of reassembly and ack name columns that their tables have: an unknown name would be dropped without a word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any
from unittest.mock import patch

from adapters import Adapters
from test_integrity import attacked

from reliable_channel.core.sds import SdsParameters
from reliable_channel.lake.tables import BY_NAME, INCOMPLETE_MESSAGES
from reliable_channel.pipeline.ack.observer import ChannelObserver
from reliable_channel.pipeline.reassembly.combiner import KINDS
from reliable_channel.pipeline.reassembly.sets import HashSets
from reliable_channel.simulation.world import simulate

FOR_THE_DRIVER = {"oldest_lamport", "newest_lamport"}
"""Of an incomplete set: they find what was reported before, and are no columns."""


def test_every_field_of_every_row_is_a_column_of_its_type() -> None:
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def noted(real: Callable[..., Any], of: Callable[[Any], Iterable[tuple[str, dict[str, Any]]]]) -> Any:
        def call(self: Any, *given: Any) -> Any:
            found = real(self, *given)
            for table, fields in of(found):
                rows[table].append(fields)
            return found

        return call

    def results(found: Any) -> Iterable[tuple[str, dict[str, Any]]]:
        for kind, fields in (result.packable() for result in found):
            if kind == "incomplete":
                hash_ = bytes.fromhex(fields["entire_message_hash"])
                kept = {name: value for name, value in fields.items() if name not in FOR_THE_DRIVER}
                yield INCOMPLETE_MESSAGES.name, {**kept, "entire_message_hash": hash_}
            elif (table := KINDS[kind]) is not None:
                yield table, fields

    with (
        patch.object(ChannelObserver, "take", noted(ChannelObserver.take, lambda found: found)),
        patch.object(HashSets, "add", noted(HashSets.add, results)),
        patch.object(HashSets, "tick", noted(HashSets.tick, results)),
    ):
        for seed in (5, 6):
            scenario = attacked(seed, per_envelope=0.3, loss=0.2, messages=16)
            adapters = Adapters(sds=SdsParameters())
            for offset, record in enumerate(simulate(scenario).records):
                if record.value is not None:
                    adapters.record(offset, record.value, dict(record.headers), record.at_ms)
            adapters.close(scenario.end_ms + 3_600_000)
    assert rows.keys() >= {
        "deliveries", "acks", "refetch_requests", "lost_dependencies", "channel_events", "ordered_sds_messages",
        "reassembled_messages", "incomplete_messages",
    }  # fmt: skip
    for table, found in rows.items():
        columns = {column.name: column.type for column in BY_NAME[table].columns}
        for fields in found:
            assert fields.keys() <= columns.keys(), table
            texts = {name for name, value in fields.items() if columns[name] == "BINARY" and isinstance(value, str)}
            assert not texts, f"{table}: bytes that are text"
