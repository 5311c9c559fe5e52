"""What a channel takes from its own configuration and from that of its node, and the defaults of each revision."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliable_channel.channel import (
    ChannelKey,
    MemoryPersistence,
    NodeConfig,
    NodeSegmentationConfig,
    ReliableChannel,
    ReliableChannelConfig,
    ReliableChannelOptions,
    SdsConfig,
    SqlitePersistence,
    create_node,
    create_reliable_channel,
    open_channel,
)
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.sds import Retransmission, SdsParameters
from tests.unit.channel.channel_world import CHANNEL, TOPIC, World


@pytest.fixture
def world() -> World:
    return World()


def test_open_channel_takes_defaults_from_the_node_configuration_and_stops_a_node_it_made(world: World) -> None:
    node = world.network.node("carol")
    channel = open_channel(
        NodeConfig(node=lambda: node, sds_config=SdsConfig(causal_history_size=7)),
        ReliableChannelConfig(),
        channel_id=CHANNEL,
        content_topic=TOPIC,
        sender_id="carol",
        clock=world.network.clock,
        threaded=False,
    )
    assert channel._cycle.machine.sds.config.causal_history_size == 7
    assert node.health().state == "Healthy"
    channel.close()
    assert node.health().state == "Unhealthy"


def test_a_channel_whose_node_fails_to_stop_releases_its_sender_and_database(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other channel of this sender could be opened until the process ended."""

    def fail() -> None:
        raise EnvironmentFault("The disk is full.")

    def open_carol() -> ReliableChannel:
        return open_channel(
            NodeConfig(node=lambda: world.network.node("carol")),
            ReliableChannelConfig(history_backend="sqlite", database=tmp_path / "channel.sqlite"),
            channel_id=CHANNEL,
            content_topic=TOPIC,
            sender_id="carol",
            clock=world.network.clock,
            threaded=False,
        )

    with monkeypatch.context() as patch, pytest.raises(EnvironmentFault):
        patch.setattr(world.network.node("carol"), "stop", fail)
        open_carol().close()
    open_carol().close()


def test_channels_of_a_created_node_take_its_configuration_and_its_persistence(world: World) -> None:
    kept = MemoryPersistence(keeps_journal=True)
    limit = RateLimitConfig(enabled=True, messages_per_epoch=20)
    sds = SdsConfig(max_retransmissions=3, persistence=kept)
    node = create_node(NodeConfig(node=world.network.node("dora"), sds_config=sds, rate_limit_config=limit))
    node.start()
    with create_reliable_channel(node, CHANNEL, TOPIC, "dora", clock=world.network.clock, threaded=False) as channel:
        config = channel._config
        assert (config.sds, config.rate_limit) == (sds.to_core(), limit)
        channel.send(b"hello")
        channel.step()
        stored = kept.load(ChannelKey(channel.pubsub_topic, TOPIC, CHANNEL, "dora"))
    assert stored.snapshot is not None or stored.journal


def test_a_node_has_a_segmentation_with_the_backend_that_keeps_incomplete_messages(world: World) -> None:
    kept = MemoryPersistence(keeps_journal=True)
    segmentation = NodeSegmentationConfig(segment_size_bytes=10_240, persistence=kept)
    limit = RateLimitConfig.of_lip173(enabled=True, epoch_period_sec=60)
    node = create_node(
        NodeConfig(node=world.network.node("dora"), segmentation_config=segmentation, rate_limit_config=limit)
    )
    node.start()
    with create_reliable_channel(node, CHANNEL, TOPIC, "dora", clock=world.network.clock, threaded=False) as channel:
        assert (channel._config.segmentation, channel._config.persistence) == (segmentation.to_core(), kept)
        assert (channel._config.rate_limit.enabled, channel._config.rate_limit.epoch_size_ms) == (True, 60_000)
        assert channel.send(bytes(100))
        assert kept.load(ChannelKey(channel.pubsub_topic, TOPIC, CHANNEL, "dora")).journal
    NodeConfig(node=node, sds_config=SdsConfig(persistence=kept), segmentation_config=segmentation)
    with pytest.raises(ConfigurationError, match="different backends"):
        NodeConfig(node=node, sds_config=SdsConfig(persistence=MemoryPersistence()), segmentation_config=segmentation)


def test_the_state_is_kept_where_the_sds_configuration_of_the_node_names(world: World, tmp_path: Path) -> None:
    sds = SdsConfig(history_backend="sqlite", database=tmp_path / "kept.sqlite")
    node = create_node(NodeConfig(node=world.network.node("dora"), sds_config=sds))
    with create_reliable_channel(node, CHANNEL, TOPIC, "dora", clock=world.network.clock, threaded=False) as channel:
        channel.send(b"hello")
        channel.step()
        key = ChannelKey(channel.pubsub_topic, TOPIC, CHANNEL, "dora")
        stored = SqlitePersistence.share(str(tmp_path / "kept.sqlite")).load(key)
    assert stored.snapshot is not None or stored.journal
    with pytest.raises(ConfigurationError, match="Name the file with database"):
        SdsConfig(history_backend="sqlite")
    with pytest.raises(ConfigurationError, match="Use memory or sqlite"):
        SdsConfig(history_backend="postgres")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="different backends"):
        NodeConfig(
            node=node, sds_config=sds, segmentation_config=NodeSegmentationConfig(persistence=MemoryPersistence())
        )


def test_what_a_channel_configures_itself_stands_before_the_node(world: World) -> None:
    node = create_node(NodeConfig(node=world.network.node("dora"), sds_config=SdsConfig(max_retransmissions=3)))
    config = ReliableChannelConfig(sds=SdsParameters(max_retransmissions=8))
    with create_reliable_channel(node, CHANNEL, TOPIC, "dora", config=config, threaded=False) as channel:
        assert channel._config.sds.max_retransmissions == 8


def test_every_default_of_the_specifications_is_there() -> None:
    config = ReliableChannelConfig()
    assert (config.segmentation.segment_size_bytes, config.segmentation.enable_reed_solomon) == (102_400, False)
    assert (config.sds.acknowledgement_timeout_ms, config.sds.max_retransmissions) == (5_000, 5)
    assert (config.sds.causal_history_size, config.history_backend, config.encryption) == (2, "memory", None)
    assert config.rate_limit == RateLimitConfig(enabled=None, epoch_size_ms=600_000)
    march = ReliableChannelConfig.of_march_2026()
    assert (march.rate_limit.enabled, march.rate_limit.epoch_size_ms) == (True, 600_000)
    assert (march.verify_chunk_chain, march.history_backend) == (True, "memory")
    assert march.segmentation.segment_size_bytes == 102_400
    sds = march.sds
    assert (sds.acknowledgement_timeout_ms, sds.max_retransmissions, sds.causal_history_size) == (5_000, 5, 2)
    assert sds.retransmission == Retransmission.FIXED
    april = ReliableChannelConfig.of_april_2026()
    assert (april.sds, april.rate_limit.counts, april.rate_limit.enabled) == (sds, "messages", None)
    assert (april.verify_chunk_chain, april.delivery_error_event, march.delivery_error_event) == (False, False, False)
    assert ReliableChannelOptions().config().sds.retransmission == Retransmission.FIXED
    options = ReliableChannelOptions()
    assert (options.sync_min_interval_ms, options.retry_interval_ms, options.max_retry_attempts) == (30_000, 30_000, 10)
    assert (options.retrieve_frequency_ms, options.sweep_in_buf_interval_ms) == (10_000, 5_000)
    assert (options.query_on_connect, options.auto_start, options.process_task_min_elapse_ms) == (True, True, 1_000)
    applied = options.config()
    assert (applied.sds.acknowledgement_timeout_ms, applied.sds.max_retransmissions) == (30_000, 10)


def test_a_wrong_configuration_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="history_backend"):
        ReliableChannelConfig(history_backend="postgres")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="database"):
        ReliableChannelConfig(history_backend="sqlite")
    with pytest.raises(ConfigurationError, match="database"):
        ReliableChannelConfig(history_backend="sqlite", database=":memory:")  # was the name of a file
    with pytest.raises(ConfigurationError, match="database"):
        ReliableChannelConfig(database="alice.db")  # nothing was kept in it
