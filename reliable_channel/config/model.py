"""Defines the whole configuration model, one class per section. Times are in ms, sizes in bytes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import ConfigDict, Field, SecretStr, ValidationInfo, field_serializer, field_validator, model_validator

from reliable_channel.config.channels import ChannelsSettings, ParticipantSettings, apply_preset
from reliable_channel.config.fixed import drop_fixed
from reliable_channel.config.kafka import KafkaSettings
from reliable_channel.config.node import BridgeSettings, NodeSettings, StoreSettings
from reliable_channel.config.section import SECRET_NAME, Bytes, Count, Milliseconds, PositiveMilliseconds, Section
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.segmentation.config import SegmentationConfig
from reliable_channel.core.segmentation.lifetime import check_lifetime
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.messaging.config import MessagingConfig

ENVIRONMENT_PREFIX = "RELIABLE_CHANNEL__"
for _core in (SegmentationConfig, SdsParameters, FilterFormat, RateLimitConfig):
    # They refuse unknown keys, too: the attribute by which pydantic configures a dataclass that is not its own.
    setattr(_core, "__pydantic_config__", ConfigDict(extra="forbid"))  # noqa: B010 - the core declares no such thing
_STATIC_SHARD = re.compile(r"/waku/2/rs/([0-9]+)/([0-9]+)")


def default_cache_dir() -> str:
    """The user's cache directory (XDG), where the jars are kept for all checkouts."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path("~/.cache").expanduser()
    return str(root / "reliable-channel")


def _make_absolute(directory: str) -> str:
    """A URI unchanged, a path made absolute: Spark, executors and delta-rs have other working directories."""
    return directory if "://" in directory else str(Path(directory).expanduser().resolve())


class PathSettings(Section):
    """Directories. Tables and checkpoints may be any URI that Spark and delta-rs know; the others are local.

    Unset, ``data_dir`` and ``checkpoint_dir`` lie under ``run_dir``, and ``cache_dir`` in the user's cache directory.
    After validation all are set and absolute.
    """

    run_dir: str = "run"
    data_dir: str = ""
    checkpoint_dir: str = ""
    cache_dir: str = ""
    ivy_settings: str | None = Field(default=None, description="Ivy settings file, for a mirror of Maven Central")

    @model_validator(mode="before")
    @classmethod
    def _resolve(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        for key in ("run_dir", "cache_dir"):
            if "://" in str(given.get(key) or ""):
                raise ValueError(f"{key} must be a local directory, not a URI")
        run = _make_absolute(str(given.get("run_dir") or "run"))
        defaults = {
            "run_dir": run,
            "data_dir": str(Path(run) / "tables"),
            "checkpoint_dir": str(Path(run) / "checkpoints"),
            "cache_dir": given.get("cache_dir") or default_cache_dir(),  # which needs a home directory
        }
        return {**given, **{key: _make_absolute(str(given.get(key) or default)) for key, default in defaults.items()}}

    @model_validator(mode="after")
    def _refuse_one_directory(self) -> PathSettings:
        if self.data_dir.rstrip("/") == self.checkpoint_dir.rstrip("/"):
            # `ack` would be a checkpoint among tables, and a rebuild moves both folders aside.
            raise ValueError("data_dir and checkpoint_dir must be two directories")
        return self

    def table(self, name: str) -> str:
        """The location of one Delta table."""
        return f"{self.data_dir.rstrip('/')}/{name}"

    def checkpoint(self, query: str) -> str:
        """The checkpoint of one streaming query."""
        return f"{self.checkpoint_dir.rstrip('/')}/{query}"


class SparkSettings(Section):
    """The local session; options given to ``spark-submit`` override ``master``, memory and ``conf``.

    ``shuffle_partitions`` is frozen in every checkpoint: it is set here, never taken from the machine.
    """

    master: str = "local[*]"
    shuffle_partitions: Count = 2
    driver_memory: str = Field(default="2g", pattern=r"^[0-9]+[mMgG]$")
    ui: bool = False
    max_offsets_per_trigger: Count = 50_000
    max_bytes_per_trigger: Bytes = Field(
        default=2**30,
        description="bytes; ingest reads fewer records per micro-batch if `max_offsets_per_trigger` records of the"
        " mean size of the topic's newest ones, measured at start, would exceed this",
    )
    trigger_interval_ms: PositiveMilliseconds = Field(
        default=10_000,
        description="ms; how often ingest reads Kafka; the other queries run as soon as they have rows",
    )
    conf: dict[str, str] = Field(default={}, description="more Spark configuration, passed on unchanged")

    @field_serializer("conf", when_used="json")
    def _mask_secrets(self, conf: dict[str, str]) -> dict[str, str]:
        return {key: "**********" if SECRET_NAME.search(key) else value for key, value in conf.items()}


class PipelineSettings(Section):
    """Settings of the jobs (docs/pipeline.md).

    Expiry and bounds of segment sets are in ``segmentation``, those of missing dependencies in ``sds``, and the limits
    applied before both in ``quotas``. A dependency missing for ``timeout_for_lost_messages_ms`` is declared lost; this
    is the observer's value, ``sds`` has a participant's.
    """

    starting_offsets: Literal["earliest", "latest"] = "earliest"
    max_clock_skew_ms: Milliseconds = 300_000
    timeout_for_lost_messages_ms: PositiveMilliseconds = 300_000
    settle_delay_ms: Milliseconds = 300_000
    verdict_interval_ms: Milliseconds = Field(
        default=60_000,
        description="ms; the pause of `run --continuous` between rounds of verdicts; 0: no rounds",
    )
    channel_expiry_ms: PositiveMilliseconds = Field(
        default=7 * 24 * 3_600_000,
        description="ms; a channel silent for this time keeps only its counters and last position",
    )
    clock_interval_ms: PositiveMilliseconds = Field(
        default=5_000,
        description="ms; without records, the first idle tick comes after this time, later ones up to six times",
    )
    quarantine_raw_bytes: Bytes = 65_536
    vacuum_retention_ms: Milliseconds = Field(
        default=7 * 24 * 3_600_000,
        description="ms; how long replaced files stay for readers of old versions; at least a minute while jobs run",
    )


FULL_SENDERS = {"channel": 4, "content_topic": 10, "pattern": 20, "pubsub_topic": 30}
"""How many senders at their own limits the shared quotas hold."""


class Quota(Section):
    """The limits of one window: SDS messages, bytes of their content, ids and hints, segments (each opens at most one
    set), and ids that histories and repair requests name (each becomes missing, and is fetched, at most once)."""

    messages: Count = 100_000
    bytes: Bytes = 2**29
    segments: Count = 50_000
    named_ids: Count = 5_000_000

    def times(self, senders: int) -> Quota:
        """The quota that so many senders may use together."""
        return Quota(**{name: value * senders for name, value in self.model_dump().items()})


def _make_default(name: str) -> Callable[[dict[str, Any]], Quota]:
    """The default of a shared quota, from the fields before it."""
    return lambda given: given.get("sender", Quota()).times(FULL_SENDERS[name])


class QuotaSettings(Section):
    """Checked in ingest, before rows reach keyed state; messages above a quota are quarantined as ``over_quota``.

    Windows of ten minutes of event time, counted per Kafka partition. ``sender`` is set; the shared quotas of a
    channel, a content topic, a ``pattern`` (all content topics together that one entry of ``channels.content_topics``
    with a wildcard matches) and a pubsub topic hold 4, 10, 20 and 30 such senders. A shared quota cannot be used up for
    moderate senders: above it only senders with more than an equal share are refused, and all from twice the quota on.
    The defaults are far above honest traffic; if the network has a rate limit, set them much tighter."""

    window_ms: PositiveMilliseconds = 600_000
    sender: Quota = Quota()
    channel: Quota = Field(default_factory=_make_default("channel"))
    content_topic: Quota = Field(default_factory=_make_default("content_topic"))
    pattern: Quota = Field(default_factory=_make_default("pattern"))
    pubsub_topic: Quota = Field(default_factory=_make_default("pubsub_topic"))


_Port = Annotated[int, Field(ge=0, lt=65_536)]


class _ServerSettings(Section):
    host: str = "127.0.0.1"
    port: _Port
    token: SecretStr | None = Field(default=None, min_length=16)
    allowed_hosts: tuple[str, ...] = ()


class ApiSettings(_ServerSettings):
    """Loopback by default. On any other address a token is required (``RELIABLE_CHANNEL__API__TOKEN``).

    ``transport``: ``kafka`` uses the bridge or the local loop, ``waku-rest`` connects directly to ``node.url``.
    ``allowed_hosts``: names in the Host header, beside the loopback ones; ``*`` is any. ``feed``: sent and received
    messages are also written to Kafka, for the pipeline.
    """

    port: _Port = 8647
    max_body_bytes: Bytes = 2 * 1024 * 1024
    transport: Literal["kafka", "waku-rest"] = "kafka"
    group_id: str = Field(
        default="reliable-channel-api",
        description="where Kafka keeps its positions; each API server on the same Kafka needs its own",
    )
    feed: bool = True


class DashboardSettings(_ServerSettings):
    """Loopback by default. On any other address a token is required (``RELIABLE_CHANNEL__DASHBOARD__TOKEN``); a browser
    asks for it as a password, with any user name.

    ``allowed_hosts``: names in the Host header, beside the loopback ones; ``*`` is any. ``refresh_ms``: how often a
    visible page checks for changes."""

    port: _Port = 8648
    refresh_ms: Annotated[int, Field(ge=100, description="ms")] = 5_000


class MetricsSettings(Section):
    """Loopback by default; the endpoint has no authentication, so open it to a trusted network only.

    ``port`` is that of ``reliable-channel run``; jobs in separate processes use the ports after it, in the order of the
    data flow. 0: no endpoint."""

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, lt=65_000)] = 9464


class AlertSettings(Section):
    """Configures alerts. If ``rules`` is unset, the shipped ``conf/alerts.yaml`` applies. Without ``webhook_url``
    changes are written to the table ``alerts`` only.

    The URL is a secret (for many services it is the only one): ``RELIABLE_CHANNEL__ALERTS__WEBHOOK_URL``;
    ``webhook_token`` is sent as ``Authorization: Bearer``. ``webhook_attempts`` counts the attempts of one run; changes
    that could not be sent are tried again at the next run.
    """

    rules: str | None = None
    webhook_url: SecretStr | None = None
    webhook_token: SecretStr | None = None
    webhook_timeout_ms: PositiveMilliseconds = 10_000
    webhook_attempts: Annotated[int, Field(gt=0, le=20)] = 4
    most_open: Count = Field(default=100, description="alerts of one rule that are open at once; a bound for strangers")

    @field_validator("webhook_url")
    @classmethod
    def _check_scheme(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not url.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("it must begin with http:// or https://")
        return url


class Settings(Section):
    """Everything that can be configured. Build it with ``load()``; ``model_copy(update=…)`` derives variants."""

    kafka: KafkaSettings = KafkaSettings()
    paths: PathSettings = Field(default_factory=PathSettings)
    spark: SparkSettings = SparkSettings()
    channels: ChannelsSettings = ChannelsSettings()
    participant: ParticipantSettings = ParticipantSettings()
    segmentation: SegmentationConfig = Field(default_factory=SegmentationConfig)
    sds: SdsParameters = Field(default_factory=SdsParameters)
    rate_limit: RateLimitConfig = Field(default_factory=RateLimitConfig)
    pipeline: PipelineSettings = PipelineSettings()
    quotas: QuotaSettings = QuotaSettings()
    metrics: MetricsSettings = MetricsSettings()
    alerts: AlertSettings = AlertSettings()
    dashboard: DashboardSettings = DashboardSettings()
    node: NodeSettings = NodeSettings()
    store: StoreSettings = StoreSettings()
    bridge: BridgeSettings = BridgeSettings()
    messaging: MessagingConfig | None = Field(default=None, description="the Messaging API; unset: not configured")
    api: ApiSettings = ApiSettings()

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, given: Any) -> Any:
        return apply_preset(given) if isinstance(given, dict) else given

    @field_validator("messaging", mode="before")
    @classmethod
    def _complete_messaging(cls, given: Any, other: ValidationInfo) -> Any:
        """Take what the section leaves out from the Waku node that it uses: mode, cluster and shards. The node finds
        its peers without bootstrap nodes of this section. A pubsub topic that is no static shard leaves cluster and
        shards open."""
        node: NodeSettings | None = other.data.get("node")  # absent if it is not valid
        if node is None:
            return None  # its errors alone are reported, not what this section lacks because of them
        if not isinstance(given, dict):
            return given
        network: dict[str, Any] = {"cluster_id": node.cluster_id, "shards": range(node.shards)}
        if node.pubsub_topic is not None:
            shard = _STATIC_SHARD.fullmatch(node.pubsub_topic)
            network = {} if shard is None else {"cluster_id": int(shard[1]), "shards": (int(shard[2]),)}
        return {"mode": node.mode, "bootstrap_nodes": (), **network, **given}

    @model_validator(mode="after")
    def _keep_sets_long_enough(self) -> Settings:
        check_lifetime(self.segmentation, self.sds, self.rate_limit)
        return self

    def as_values(self) -> dict[str, Any]:
        """The effective configuration in JSON types, secrets masked; without what it does not set."""
        values: dict[str, Any] = drop_fixed(self.model_dump(mode="json", exclude={"sds": {"jitter"}}))
        return values

    def to_yaml(self) -> str:
        """The effective configuration as YAML, secrets masked."""
        text: str = yaml.safe_dump(self.as_values(), sort_keys=False, allow_unicode=True)
        return text

    def with_servers(self, bootstrap_servers: str) -> Settings:
        """The same configuration on another cluster, such as a broker started on a free port."""
        return self.model_copy(update={"kafka": self.kafka.model_copy(update={"bootstrap_servers": bootstrap_servers})})

    def with_run_dir(self, run_dir: Path | str) -> Settings:
        """The same configuration with run directory, tables and checkpoints under another directory."""
        paths = PathSettings(run_dir=str(run_dir), cache_dir=self.paths.cache_dir)
        return self.model_copy(update={"paths": paths})
