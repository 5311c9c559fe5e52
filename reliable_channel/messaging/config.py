"""Configures the Messaging API (MESSAGING-API, *Initial configuration*): typed, frozen, validated on construction.

Does not depend on transports or on the source of the settings. Names are Python's; only
:meth:`MessagingConfig.from_wire` and :meth:`MessagingConfig.from_node_config` accept those of the two generations.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel, to_snake

from reliable_channel.core.errors import ConfigurationError, LocalError
from reliable_channel.transport.health import Mode

__all__ = ["CONFIRMATION_SUBSCRIPTION_ID", "MessagingConfig", "Mode"]

CONFIRMATION_SUBSCRIPTION_ID = "1692854c-cbde-4afe-901f-1c86ecbd9ea1"
"""The reserved subscription id of the background confirmation (MESSAGING-API, *Acknowledgements*)."""


def _check_multiaddr(value: str) -> str:
    """Checks the form only: the node that dials the address validates it."""
    parts = value.split("/")
    if len(parts) < 3 or parts[0] != "" or not all(parts[1:]) or any(character.isspace() for character in value):
        raise ValueError("not a multiaddr such as /dns4/node.example/tcp/443/wss/p2p/16Uiu2…")
    return value


def check_content_topic(value: str) -> str:
    """Return a content topic of 23/WAKU2-TOPICS: ``/application/version/name/encoding``, with an optional leading
    ``/generation``. Raises ``ValueError``."""
    parts = value.split("/") if isinstance(value, str) else []
    if len(parts) not in (5, 6) or parts[0] != "" or not all(parts[1:]):
        raise ValueError("not a content topic such as /application/1/name/proto")
    return value


def _check_distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) != len(values):
        raise ValueError("an entry appears twice")
    return values


Multiaddr = Annotated[str, Field(max_length=1_024), AfterValidator(_check_multiaddr)]
ContentTopic = Annotated[str, Field(max_length=1_024), AfterValidator(check_content_topic)]
Shard = Annotated[int, Field(ge=0, le=1_023)]
Multiaddrs = Annotated[tuple[Multiaddr, ...], Field(max_length=100), AfterValidator(_check_distinct)]


ONE_SHARD = {"num_shards_in_cluster": 1}
THE_WAKU_NETWORK = {"cluster_id": 1, "auto_sharding_config": {"num_shards_in_cluster": 8}}
"""The default of ``protocols_config`` (LIP-168, *TheWakuNetworkPreset*)."""
OF_THE_WAKU_NODE = ("networking_config", "eth_rpc_endpoints", "message_validation")
"""Settings of LIP-168's ``NodeConfig`` that belong to the configuration of the Waku node behind the REST interface."""


class MessagingConfig(BaseModel):
    """The configuration of MESSAGING-API, then the bounds it leaves to implementations. Times in ms, sizes in bytes.

    Raises pydantic's ``ValidationError``, which names the field; :meth:`of` turns it into a ``ConfigurationError``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    mode: Mode
    cluster_id: int = Field(ge=0, le=65_535)
    shards: Annotated[tuple[Shard, ...], Field(min_length=1), AfterValidator(_check_distinct)]
    bootstrap_nodes: Multiaddrs
    store_nodes: Multiaddrs | None = None
    preferred_service_nodes: Multiaddrs | None = None
    store_confirmation: bool = False
    filter_confirmation: bool = True
    confirm_content_topics: (
        Annotated[tuple[ContentTopic, ...], Field(max_length=1_000), AfterValidator(_check_distinct)] | None
    ) = None

    store_query_interval_ms: int = Field(default=60_000, gt=0, description="ms between two confirmation queries")
    store_settle_ms: int = Field(
        default=5_000, ge=0, description="a message younger than this is not yet judged missing from the store"
    )
    attempt_timeout_ms: int = Field(
        default=120_000, gt=0, description="an attempt that the transport never answers counts as unreachable"
    )
    max_in_flight: int = Field(default=64, gt=0, description="attempts handed to the transport and not yet answered")
    max_records: int = Field(default=10_000, gt=0, description="older records are dropped beyond this many")
    max_record_bytes: int = Field(
        default=256 * 1024 * 1024, gt=0, description="bytes of payloads and proofs in all records"
    )
    max_record_age_ms: int = Field(default=7 * 24 * 3_600_000, gt=0)
    max_pending_requests: int = Field(default=10_000, gt=0)
    max_subscriptions: int = Field(default=1_000, gt=0)

    @classmethod
    def of(cls, **fields: Any) -> MessagingConfig:
        """The configuration from Python names; raises ``ConfigurationError`` naming every wrong field."""
        try:
            return cls(**fields)
        except ValidationError as error:
            raise _explain(error) from None

    @classmethod
    def from_wire(cls, document: Mapping[str, Any]) -> MessagingConfig:
        """The configuration from the specified JSON names (``clusterId`` …); unknown names are refused."""
        names = {to_camel(name): name for name in cls.model_fields}
        unknown = sorted(set(document) - set(names))
        if unknown:
            raise ConfigurationError(f"Unknown configuration {', '.join(unknown)}.", f"Known keys: {', '.join(names)}.")
        return cls.of(**{names[key]: value for key, value in document.items()})

    @classmethod
    def from_node_config(cls, document: Mapping[str, Any], **fields: Any) -> MessagingConfig:
        """The configuration from the ``NodeConfig`` of LIP-168's ``createNode``, nested as there, in snake_case or
        camelCase, with its defaults: mode ``core`` in The Waku Network, without its entry nodes, which are the Waku
        node's. ``fields``: settings that LIP-168 does not have. Raises ``ConfigurationError``, also for
        what only the Waku node's own configuration can set."""
        node = _read_section("NodeConfig", document, "mode", "protocols_config")
        protocols = _read_section(
            "protocols_config",
            node.get("protocols_config", THE_WAKU_NETWORK),
            "entry_nodes",
            "static_store_nodes",
            "cluster_id",
            "auto_sharding_config",
        )
        sharding = _read_section(
            "auto_sharding_config", protocols.get("auto_sharding_config", ONE_SHARD), "num_shards_in_cluster"
        )
        mode, count = node.get("mode", "core"), sharding.get("num_shards_in_cluster")
        if mode not in ("core", "edge"):
            raise ConfigurationError(f"NodeConfig.mode is {mode!r}.", "Use core or edge.")
        if not isinstance(count, int) or not 1 <= count <= 1_024:
            raise ConfigurationError(f"num_shards_in_cluster is {count!r}.", "Use a number from 1 to 1024.")
        given = {
            "mode": Mode.RELAY if mode == "core" else Mode.EDGE,
            "shards": range(count),
            "bootstrap_nodes": protocols.get("entry_nodes", ()),
            "store_nodes": protocols.get("static_store_nodes") or None,
        }
        if "cluster_id" in protocols:
            given["cluster_id"] = protocols["cluster_id"]
        return cls.of(**{**given, **fields})

    @property
    def pubsub_topics(self) -> tuple[str, ...]:
        """The pubsub topics of the configured shards (RELAY-SHARDING, static sharding)."""
        return tuple(f"/waku/2/rs/{self.cluster_id}/{shard}" for shard in self.shards)


def _read_section(name: str, document: object, *known: str) -> dict[str, Any]:
    """An object of LIP-168's ``NodeConfig`` under snake_case names; raises ``ConfigurationError`` for another one."""
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"{name} is no object.", f"Known keys: {', '.join(known)}.")
    fields = {to_snake(str(key)): value for key, value in document.items()}
    if nodes := sorted(set(fields) & set(OF_THE_WAKU_NODE)):
        remedy = "Set it where the Waku node is configured, and leave it out here."
        raise ConfigurationError(f"{', '.join(nodes)} of {name} would have no effect.", remedy)
    if unknown := sorted(set(fields) - set(known)):
        raise ConfigurationError(
            f"Unknown configuration {', '.join(unknown)} in {name}.", f"Known: {', '.join(known)}."
        )
    return fields


def _explain(error: ValidationError) -> ConfigurationError:
    parts = []
    for item in error.errors(include_url=False, include_context=False):
        where = ".".join(str(part) for part in item["loc"])
        parts.append(f"{where}: {item['msg'].removeprefix('Value error, ')}")
    return ConfigurationError(f"The messaging configuration is wrong: {'; '.join(parts)}.", "Correct the value.")


_STATIC_SHARD = re.compile(r"/waku/2/rs/(0|[1-9][0-9]{0,9})/(0|[1-9][0-9]{0,9})")


class UnsupportedTopicError(LocalError):
    """The pubsub topic of an encoder or decoder is not one of the node's shards (MESSAGING-API, ``send`` and
    ``subscribe``)."""


def check_send_topic(config: MessagingConfig, pubsub_topic: str) -> None:
    """Raise :class:`UnsupportedTopicError` with MESSAGING-API's 404 text for ``POST /send``."""
    if pubsub_topic not in config.pubsub_topics:
        raise UnsupportedTopicError(f"Failed to send message. Target pubsubTopic '{pubsub_topic}' not supported.")


def check_read_topic(config: MessagingConfig, pubsub_topic: str, failure: str) -> None:
    """Raise :class:`UnsupportedTopicError` for a pubsub topic that is not one of the node's. Its text names the part of
    the topic that does not fit after ``failure``, as MESSAGING-API's 404 for ``POST /subscribe`` does."""
    if pubsub_topic in config.pubsub_topics:
        return
    match = _STATIC_SHARD.fullmatch(pubsub_topic)
    if match is None:
        unsupported = f"pubsubTopic '{pubsub_topic}'"
    else:
        unsupported = f"shard {match[2]}" if int(match[1]) == config.cluster_id else f"clusterId {match[1]}"
    raise UnsupportedTopicError(f"{failure} {unsupported} is not supported.")
