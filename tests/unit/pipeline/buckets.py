"""The stored state of a bucket without Spark, and rows as Spark gives them to the ack job."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pandas as pd

from reliable_channel.pipeline.ack.observer import ChannelKey
from reliable_channel.pipeline.ack.records import InputRow


class FakeBucket:
    """What the ack job needs of Spark's state store."""

    def __init__(self, other: FakeBucket | None = None) -> None:
        self.stored_head: bytes | None = other.stored_head if other else None
        self.entries: dict[tuple[bytes, int], bytes] = dict(other.entries) if other else {}
        self.touched = 0

    def head(self) -> bytes | None:
        return self.stored_head

    def set_head(self, value: bytes) -> None:
        self.stored_head = value

    def get(self, name: bytes, part: int) -> bytes | None:
        self.touched += 1
        return self.entries.get((name, part))

    def put(self, name: bytes, part: int, value: bytes) -> None:
        self.touched += 1
        self.entries[name, part] = value

    def remove(self, name: bytes, part: int) -> None:
        self.touched += 1
        del self.entries[name, part]

    def channel_bytes(self) -> int:
        """Bytes of the channels' snapshots and journals; settings and due times have other names."""
        return sum(len(value) for (name, _), value in self.entries.items() if len(name) == 32)


def text_of(row: InputRow) -> str:
    """As Spark's ``to_json``: without nulls, bytes in base64."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return base64.b64encode(value).decode()
        return value

    fields = {name: plain(value) for name, value in row._asdict().items() if value is not None}
    fields.pop("bloom_filter", None)
    for name in ("causal_history", "repair_request"):
        fields[name] = [
            {
                "sds_id": entry.message_id,
                **({} if entry.retrieval_hint is None else {"retrieval_hint": plain(entry.retrieval_hint)}),
                **({} if entry.sender_id is None else {"sender_id": entry.sender_id}),
            }
            for entry in fields[name]
        ]
    return json.dumps({**fields, "sub_order": 0})


NO_CHANNEL = (None, None, None, None)
"""The key of ticks."""


def frame_of(key: ChannelKey | tuple[None, None, None, None], rows: Sequence[InputRow]) -> pd.DataFrame:
    """A channel's rows, or ticks, as Spark gives them."""
    fields = [(*key, text_of(row), row.bloom_filter) for row in rows]
    names = ["pubsub_topic", "content_topic", "channel_id", "family", "row", "bloom_filter"]
    return pd.DataFrame(fields, columns=names)
