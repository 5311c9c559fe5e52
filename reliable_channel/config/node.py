"""Configures the Waku node, the store nodes to query, the store server and the bridge. Times are in ms."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from reliable_channel.config.kafka import TopicName
from reliable_channel.config.section import Bytes, Count, Milliseconds, PositiveMilliseconds, Section


def _check_address(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if scheme not in ("http", "https") or not separator or not rest or any(c.isspace() for c in url):
        raise ValueError("not an address such as http://127.0.0.1:8645")
    if "@" in rest.split("/")[0]:
        raise ValueError("credentials do not belong in an address; put them in headers")
    return url.rstrip("/")


Address = Annotated[str, Field(max_length=2_000), AfterValidator(_check_address)]
DialectName = Literal["auto", "nwaku", "go-waku"]


class RestSettings(Section):
    """The settings of calls to a REST address. ``headers`` are for gateways that require a token; nodes themselves
    require none."""

    dialect: DialectName = "auto"
    headers: dict[str, SecretStr] = Field(default={}, description="sent with every request, such as Authorization")
    timeout_ms: PositiveMilliseconds = 10_000
    max_body_bytes: Bytes = 32 * 1024 * 1024


class NodeSettings(RestSettings):
    """The Waku node. ``pubsub_topic`` unset means autosharding over ``shards`` shards of ``cluster_id``."""

    url: Address = "http://127.0.0.1:8645"
    mode: Literal["relay", "edge"] = "relay"
    pubsub_topic: str | None = None
    cluster_id: int = Field(default=1, ge=0, le=65_535)
    shards: Count = 8
    poll_interval_ms: PositiveMilliseconds = 250
    max_backoff_ms: PositiveMilliseconds = Field(
        default=15_000, description="between attempts to send; an unreachable node is asked every 2 s at least"
    )
    cache_messages: Count | None = Field(
        default=None,
        description="messages the node keeps for REST readers: nwaku over all topics (rest-relay-cache-capacity),"
        " go-waku for each (rest-relay-cache-capacity, rest-filter-cache-capacity); unset: the node's default",
    )


class StoreNodeSettings(RestSettings):
    """One store node, or a node that asks the store peer ``peer_address`` (go-waku needs it for hashes)."""

    url: Address
    peer_address: str | None = Field(default=None, pattern=r"^/[^\s]+$")


class StoreServerSettings(Section):
    """``reliable-channel store serve``. Anybody who reaches the port can read every stored envelope."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, lt=65536)] = 8646
    allowed_hosts: list[str] = Field(default=[], description="names in the Host header; empty: the loopback names")
    refresh_ms: Milliseconds = 1_000


class StoreAuditSettings(Section):
    """The refetch job asks store nodes whether they hold a sample of the envelopes seen here."""

    share: float = Field(default=0.01, ge=0, le=1, description="of the envelopes; 0 asks for none")
    after_ms: Milliseconds = Field(default=120_000, description="a node has had this long to store it")
    within_ms: PositiveMilliseconds = Field(default=3_600_000, description="older envelopes are not asked for")


class StoreSettings(Section):
    """The store nodes to query, in order of preference."""

    nodes: list[StoreNodeSettings] = Field(default=[])
    attempts: Count = 4
    first_wait_ms: Milliseconds = 500
    audit: StoreAuditSettings = StoreAuditSettings()
    server: StoreServerSettings = StoreServerSettings()


class BridgeSettings(Section):
    """``reliable-channel bridge``. In edge mode ``content_topics`` must be named; in relay mode empty means all."""

    content_topics: list[str] = Field(default=[])
    vantage: str = Field(
        default="bridge",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="the name of this bridge beside others on the same Kafka; each needs its own",
    )
    evidence_topic: TopicName = "waku.evidence"
    group_id: str = "reliable-channel-bridge"
    gap_settle_ms: Milliseconds = Field(default=5_000, description="a store is asked this long after a gap has ended")
    gap_retry_ms: PositiveMilliseconds = 60_000

    @model_validator(mode="after")
    def _check_topics(self) -> BridgeSettings:
        if any(not topic or len(topic) > 1_024 for topic in self.content_topics):
            raise ValueError("a content topic is empty or longer than 1024 characters")
        return self
