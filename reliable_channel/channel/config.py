"""Configures a channel, with the names and defaults of RELIABLE-CHANNEL-API (docs/spec/index.md).

The names of the current revision apply, and its defaults where docs/channel.md, *Presets*, names no other.
``ReliableChannelConfig.of_april_2026()`` and ``of_march_2026()`` have exactly the defaults of these revisions,
:class:`ReliableChannelOptions` those of the first one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Literal

from reliable_channel import __version__
from reliable_channel.channel.persistence import MemoryPersistence, Persistence, SqlitePersistence
from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.sds import Retransmission, SdsParameters
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.settings import check_settings
from reliable_channel.transport.base import Node
from reliable_channel.transport.sqlite import IN_MEMORY


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliableChannelConfig:
    """One channel's configuration (``ReliableChannelConfig`` of the March 2026 revision with the options of the first
    revision). Times in ms.

    ``history_backend``: ``memory`` ends with the process; ``sqlite`` keeps state in ``database``. ``persistence`` sets
    another backend and overrides both. ``encryption``: see :mod:`reliable_channel.channel.encryption`;
    ``encryption_layer``: what it encrypts when sending, both are read.
    ``query_on_connect``: when the channel starts, and when the node becomes healthy again, query a store for missed
    messages, at most ``query_window_ms`` back; from then on check every ten minutes what arrived of what a store has.
    ``auto_start``: creating the channel starts it.
    ``process_task_min_elapse_ms``: incoming messages are processed in batches at least this far apart; 0: as they
    arrive. ``verify_chunk_chain``: see :mod:`reliable_channel.core.segmentation.chunk`.
    ``delivery_error_event``: a send that was dispatched and is not acknowledged ends in ``MessageDeliveryError``
    (LIP-173); if false in ``MessageSendError``, the only error event of the earlier revisions. ``max_queued_bytes``:
    how many bytes may wait for the node before ``send`` blocks, for at most ``send_timeout_ms``.
    """

    segmentation: SegmentationConfig = field(default_factory=SegmentationConfig)
    sds: SdsParameters = field(default_factory=SdsParameters)
    rate_limit: RateLimitConfig = field(default_factory=RateLimitConfig)
    encryption: object | None = None
    encryption_layer: EncryptionLayer = EncryptionLayer.AROUND_SDS
    history_backend: Literal["memory", "sqlite"] = "memory"
    database: Path | str | None = None
    persistence: Persistence | None = None
    query_on_connect: bool = True
    query_window_ms: int = 86_400_000
    auto_start: bool = True
    process_task_min_elapse_ms: int = 0
    verify_chunk_chain: bool = False
    delivery_error_event: bool = True
    max_queued_bytes: int = 64 * 1024 * 1024
    send_timeout_ms: int = 60_000
    max_journal_entries: int = 10_000
    max_journal_bytes: int = 16 * 1024 * 1024

    def __post_init__(self) -> None:
        check_settings(self, positive=("max_queued_bytes", "max_journal_entries", "max_journal_bytes"))
        _check_backend(self)

    @classmethod
    def of_april_2026(cls) -> ReliableChannelConfig:
        """The rules of the current revision: every wait for an acknowledgement is ``acknowledgement_timeout_ms``, the
        rate limit counts ephemeral messages and the first segment of each other message (its other segments are
        admitted), and one event reports every failed send."""
        return cls(
            rate_limit=RateLimitConfig(counts="messages"),
            sds=SdsParameters(retransmission=Retransmission.FIXED),
            delivery_error_event=False,
        )

    @classmethod
    def of_march_2026(cls) -> ReliableChannelConfig:
        """The rules of the March 2026 revision: those of :meth:`of_april_2026`, the rate limit is on, and chunks are
        used only in a verified chain."""
        april = cls.of_april_2026()
        return replace(april, rate_limit=replace(april.rate_limit, enabled=True), verify_chunk_chain=True)

    def open_persistence(self) -> Persistence:
        """The backend in use: the given one, or one of ``history_backend``; all channels of a process share a file."""
        if self.persistence is not None:
            return self.persistence
        return SqlitePersistence.share(str(self.database)) if self.history_backend == "sqlite" else MemoryPersistence()

    def fingerprint(self, segmentation: SegmentationConfig) -> str:
        """The settings on which a journal depends, and the version of this program: replaying it under others would
        produce other messages. ``segmentation`` has the segment size that fits an envelope."""
        # ``ChannelMachine`` waits for *sent*, whatever is configured.
        sds = {key: str(value) for key, value in asdict(replace(self.sds, wait_for_sent=True)).items()}
        # The text of a function has its address, which is another one in the next process.
        sds["jitter"] = getattr(self.sds.jitter, "__qualname__", "?")
        sizes = {
            key: str(sorted(value) if isinstance(value, frozenset) else value)
            for key, value in asdict(segmentation).items()
        }
        program = {"version": __version__}
        channel = {"chain": str(self.verify_chunk_chain), "delivery_error_event": str(self.delivery_error_event)}
        parts = [("program", program), ("sds", sds), ("segmentation", sizes), ("channel", channel)]
        return "\n".join(f"{name}.{key}={value}" for name, values in parts for key, value in sorted(values.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliableChannelOptions:
    """The options of the first revision under their names, with their defaults; ``None`` leaves a value to SDS. One
    event reports every failed send."""

    sync_min_interval_ms: int = 30_000
    retry_interval_ms: int = 30_000
    max_retry_attempts: int = 10
    retrieve_frequency_ms: int = 10_000
    sweep_in_buf_interval_ms: int = 5_000
    query_on_connect: bool = True
    auto_start: bool = True
    process_task_min_elapse_ms: int = 1_000
    causal_history_size: int | None = None
    timeout_for_lost_messages_ms: int | None = None
    possible_acks_threshold: int | None = None

    def __post_init__(self) -> None:
        check_settings(self)

    def config(self, base: ReliableChannelConfig | None = None) -> ReliableChannelConfig:
        """These options as a configuration, over ``base``."""
        base = base or ReliableChannelConfig()
        sds = replace(
            base.sds,
            sync_min_interval_ms=self.sync_min_interval_ms,
            acknowledgement_timeout_ms=self.retry_interval_ms,
            max_retransmissions=self.max_retry_attempts,
            retransmission=Retransmission.FIXED,
            retrieve_frequency_ms=self.retrieve_frequency_ms,
            sweep_in_buf_interval_ms=self.sweep_in_buf_interval_ms,
            timeout_for_lost_messages_ms=self.timeout_for_lost_messages_ms,
        )
        if self.causal_history_size is not None:
            sds = replace(sds, causal_history_size=self.causal_history_size)
        if self.possible_acks_threshold is not None:
            sds = replace(sds, possible_acks_threshold=self.possible_acks_threshold)
        return replace(
            base,
            sds=sds,
            delivery_error_event=False,
            query_on_connect=self.query_on_connect,
            auto_start=self.auto_start,
            process_task_min_elapse_ms=self.process_task_min_elapse_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SdsConfig(SdsParameters):
    """``SdsConfig`` of RELIABLE-CHANNEL-API: that of the protocol core, and the backend that keeps the state, named as
    in the March 2026 revision (``history_backend``, with its ``database``) or given (``persistence``)."""

    history_backend: Literal["memory", "sqlite"] = "memory"
    database: Path | str | None = None
    persistence: Persistence | None = None

    def __post_init__(self) -> None:
        SdsParameters.__post_init__(self)
        _check_backend(self)

    def to_core(self) -> SdsParameters:
        """What the protocol core takes."""
        return SdsParameters(**{one.name: getattr(self, one.name) for one in fields(SdsParameters)})


def _check_backend(config: ReliableChannelConfig | SdsConfig) -> None:
    """Raise ``ConfigurationError`` for a backend that has no file, and for a file that none uses."""
    if config.persistence is not None:
        return
    if config.history_backend == "memory" and config.database is not None:
        raise ConfigurationError("history_backend memory has no database.", "Use sqlite, or leave the database out.")
    if config.history_backend == "sqlite" and (config.database is None or str(config.database) == IN_MEMORY):
        raise ConfigurationError("history_backend sqlite has no database.", "Name the file with database.")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSegmentationConfig(SegmentationConfig):
    """``SegmentationConfig`` of LIP-173: that of the protocol core, and the backend that keeps incomplete messages."""

    persistence: Persistence | None = None

    def to_core(self) -> SegmentationConfig:
        """What the protocol core takes."""
        return SegmentationConfig(**{one.name: getattr(self, one.name) for one in fields(SegmentationConfig)})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelDefaults:
    """The values that the channels of a node take where their own configuration has the default. Raises
    ``ConfigurationError`` if SDS and segmentation have different backends: one journal holds the state of both."""

    sds_config: SdsConfig | SdsParameters | None = None
    rate_limit_config: RateLimitConfig | None = None
    segmentation_config: NodeSegmentationConfig | SegmentationConfig | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        self._persistence()

    def _persistence(self) -> Persistence | None:
        """The backend of SDS and segmentation."""
        of_sds = getattr(self.sds_config, "persistence", None)
        of_segmentation = getattr(self.segmentation_config, "persistence", None)
        other = of_sds is not None or getattr(self.sds_config, "history_backend", "memory") == "sqlite"
        if of_segmentation is not None and other and of_sds is not of_segmentation:
            raise ConfigurationError(
                "sds_config and segmentation_config have different backends.",
                "Give both the same, or one of them none: one journal holds the state of both.",
            )
        return of_sds or of_segmentation

    def apply_to(self, config: ReliableChannelConfig) -> ReliableChannelConfig:
        """The configuration of a channel on this node."""
        persistence = self._persistence()
        if persistence is not None and config.persistence is None and config.history_backend == "memory":
            config = replace(config, persistence=persistence)
        sds, segmentation = self.sds_config, self.segmentation_config
        if isinstance(sds, SdsConfig) and config.persistence is None and config.history_backend == "memory":
            config = replace(config, history_backend=sds.history_backend, database=sds.database)
        if sds is not None and config.sds == SdsParameters():
            config = replace(config, sds=sds.to_core() if isinstance(sds, SdsConfig) else sds)
        if segmentation is not None and config.segmentation == SegmentationConfig():
            core = segmentation.to_core() if isinstance(segmentation, NodeSegmentationConfig) else segmentation
            config = replace(config, segmentation=core)
        if self.rate_limit_config is not None and config.rate_limit == RateLimitConfig():
            config = replace(config, rate_limit=self.rate_limit_config)
        return config


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig(ChannelDefaults):
    """The configuration from which ``create_node`` and ``open_channel`` make a node (``NodeConfig`` of MESSAGING-API,
    extended by ``sds_config``, ``rate_limit_config`` and, as in LIP-173, ``segmentation_config``). ``node`` is a node
    or a function that makes one."""

    node: Node | Callable[[], Node]


@dataclass(frozen=True, slots=True)
class MessageEnvelope:
    """A message for the Messaging API (LIP-168, *MessageEnvelope*). ``meta``, at most 64 bytes, is logos-delivery's
    addition; a reliable channel sets its own."""

    content_topic: str
    payload: bytes
    ephemeral: bool = False
    meta: bytes | None = None


@dataclass(frozen=True, slots=True)
class ReliableEnvelope:
    """A message with the channel to send it on (the March 2026 revision). An empty ``channel_id``: ephemeral, sent
    without reliability."""

    message_envelope: MessageEnvelope
    channel_id: str = ""
