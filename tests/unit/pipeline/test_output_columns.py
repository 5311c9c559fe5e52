"""Rows of reassembly and ack hold values of the types of their columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from reliable_channel.core.sds import SdsParameters
from reliable_channel.lake.schema import row_type
from reliable_channel.lake.tables import ACKS, BY_NAME, INCOMPLETE_MESSAGES
from reliable_channel.pipeline.ack.observer import ChannelObserver
from reliable_channel.pipeline.reassembly.set_results import ReportedSet
from reliable_channel.pipeline.reassembly.sets import HashSets
from reliable_channel.simulation.world import simulate
from tests.support.adapters import Adapters
from tests.support.integrity import attack_scenario


def test_a_row_has_no_other_columns_than_its_table() -> None:
    assert row_type(ACKS)(sds_id="a").channel_id is None
    with pytest.raises(TypeError, match="no_column"):
        row_type(ACKS)(no_column=1)


def test_every_field_of_every_row_is_a_column_of_its_type() -> None:
    rows: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def noted(real: Callable[..., Any]) -> Any:
        def call(self: Any, *given: Any) -> Any:
            found = real(self, *given)
            for result in found:
                if isinstance(result, ReportedSet):
                    rows[INCOMPLETE_MESSAGES.name].append(result.fields)
                else:
                    rows[type(result).__name__].append(result._asdict())
            return found

        return call

    with (
        patch.object(ChannelObserver, "take", noted(ChannelObserver.take)),
        patch.object(HashSets, "add", noted(HashSets.add)),
        patch.object(HashSets, "tick", noted(HashSets.tick)),
    ):
        for seed in (5, 6):
            scenario = attack_scenario(seed, per_envelope=0.3, loss=0.2, messages=16)
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
        if table not in {"ordered_sds_messages", "incomplete_messages"}:  # SQL fills the one; few sets have a detail
            filled = {name for fields in found for name, value in fields.items() if value is not None}
            assert filled == columns.keys(), f"{table}: columns that are always null"
