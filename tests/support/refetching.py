"""The refetch loop without Spark: real Delta tables, store nodes in memory, Kafka as a list."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from reliable_channel.config import Settings, load
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.core.wire.waku import WakuMessage, message_hash
from reliable_channel.evidence.refetch import RefetchResult, refetch
from reliable_channel.lake import tables
from reliable_channel.lake.append import append_rows
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.schema import as_arrow
from reliable_channel.transport.store.client import RetryPolicy, StoreClient
from reliable_channel.transport.store.model import StoreEntry, StorePage, StoreQuery
from reliable_channel.transport.store.rest_node import StoreFault, StoreNodeError
from reliable_channel.transport.store.source import MemorySource, read_page

PUBSUB, TOPIC = "/waku/2/rs/1/0", "/reliable-channel/1/chat/proto"
START_S = 1_767_225_600


def carrying(channel_id: str, sds_id: str = "m1", content: bytes = b"hi", topic: str = TOPIC) -> WakuMessage:
    """An envelope with an SDS message of Alice."""
    data = encode_sds_message(SdsMessage("alice", sds_id, channel_id, START_S * 1_000, content=content))
    return WakuMessage(data, topic, timestamp=START_S * 10**9)


STORED = carrying("talk")
LOST = WakuMessage(b"nobody stored it", TOPIC, timestamp=START_S * 10**9)


class MemoryNode:
    """A store node in this process; ``broken`` gives no page."""

    def __init__(self, name: str, *messages: WakuMessage, broken: bool = False) -> None:
        self.name = name
        self._source = MemorySource()
        for message in messages:
            self._source.add(PUBSUB, message)
        self._broken = broken
        self.queries = 0

    def query(self, query: StoreQuery) -> StorePage:
        self.queries += 1
        if self._broken:
            raise StoreNodeError(self.name, StoreFault.UNREACHABLE, "off")
        return read_page(self._source, query, self.name)

    def close(self) -> None:
        return None


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_in(tmp_path)


def settings_in(place: Path) -> Settings:
    """A configuration with empty tables under ``place``."""
    settings = load("local", paths={"run_dir": str(place)})
    create_tables(settings.paths, (tables.REFETCH_REQUESTS, tables.SDS_MESSAGES, tables.ENVELOPES, tables.SOURCE_GAPS))
    return settings


def request(
    settings: Settings,
    sds_id: str,
    message: WakuMessage,
    attempt: int = 1,
    hint: bytes | None = None,
    channel_id: str = "talk",
    after_s: int = 0,
) -> None:
    row = {
        "pubsub_topic": PUBSUB,
        "content_topic": message.content_topic,
        "channel_id": channel_id,
        "sds_id": sds_id,
        "retrieval_hint": hint if hint is not None else message_hash(PUBSUB, message),
        "attempt": attempt,
        "event_time": (START_S + after_s) * 10**6,
    }
    append_rows(settings.paths, tables.REFETCH_REQUESTS, as_arrow([row], tables.REFETCH_REQUESTS))


def run(settings: Settings, *nodes: MemoryNode) -> tuple[RefetchResult, list[StoreEntry]]:
    written: list[StoreEntry] = []

    def write_back(entries: Sequence[StoreEntry]) -> None:
        written.extend(entries)

    client = StoreClient(nodes, RetryPolicy(attempts=1), sleep=lambda _: None)
    return refetch(settings, client, write_back), written


def presence(settings: Settings) -> dict[tuple[str, Any], str]:
    rows = rows_of(open_table(settings.paths, tables.STORE_PRESENCE))
    return {(row["node"], row["sds_id"]): row["outcome"] for row in rows}


RECORD = {"kafka_topic": "waku.envelopes", "kafka_partition": 0, "kafka_offset": 0}


def add_arrival(settings: Settings, sds_id: str, id_verified: bool | None = None) -> None:
    row = {"pubsub_topic": PUBSUB, "content_topic": TOPIC, "channel_id": "talk", "sds_id": sds_id, **RECORD}
    row["id_verified"] = id_verified
    append_rows(settings.paths, tables.SDS_MESSAGES, as_arrow([row], tables.SDS_MESSAGES))
