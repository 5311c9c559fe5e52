"""Without ``bootstrap_servers`` only the broker of the run directory is used, whatever listens on the default port."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliable_channel.config import Settings, load
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.runtime.own_broker import check_kafka, cluster_id_of


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    data = tmp_path / "kafka" / "data"
    data.mkdir(parents=True)
    (data / "meta.properties").write_text("# Kafka\nversion=1\ncluster.id=AOurOwn_Cluster-Id\nnode.id=1\n")
    return load().with_run_dir(tmp_path)


def test_our_own_broker_is_used(settings: Settings) -> None:
    check_kafka(settings, lambda _: "AOurOwn_Cluster-Id")


def test_another_kafka_on_the_default_port_is_refused_with_both_remedies(settings: Settings) -> None:
    with pytest.raises(EnvironmentFault, match=r"is not the broker of.*bootstrap_servers.*broker\.port"):
        check_kafka(settings, lambda _: "SomebodyElse")


def test_a_kafka_is_refused_where_no_broker_was_ever_started(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault):
        check_kafka(load().with_run_dir(tmp_path), lambda _: "SomebodyElse")


def test_a_kafka_that_is_named_is_not_asked(settings: Settings) -> None:
    def never(_: object) -> str:
        raise AssertionError("asked")

    check_kafka(settings.with_servers("127.0.0.1:1"), never)


def test_nobody_answering_is_left_to_whoever_connects(settings: Settings) -> None:
    check_kafka(settings, lambda _: None)
    assert cluster_id_of(settings.with_servers("127.0.0.1:1").kafka, 0.2) is None


@pytest.mark.parametrize("named", [True, False], ids=["named", "our own"])
def test_before_spark_waits_for_minutes_it_is_said_that_nobody_answers(
    settings: Settings, caplog: pytest.LogCaptureFixture, named: bool
) -> None:
    address, remedy = settings.kafka.servers, "Start it with `reliable-channel kafka start`."
    if named:
        address, remedy = "kafka-1:9092", "Check kafka.bootstrap_servers and security."
        settings = settings.with_servers(address)
    check_kafka(settings, lambda _: None, for_spark=True)
    wanted = f"Kafka at {address} cannot be used (no answer). {remedy} Ingest waits for it some minutes."
    assert caplog.messages == [wanted]
    check_kafka(settings, lambda _: "AOurOwn_Cluster-Id", for_spark=True)
    assert caplog.messages == [wanted]


@pytest.mark.parametrize("key", ["ssl_ca_file", "ssl_certificate_file"])
@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "not PEM"])
def test_a_certificate_file_that_cannot_be_loaded_is_named(tmp_path: Path, key: str, content: str | None) -> None:
    """The clients try to load it until their time-out, and report that alone."""
    file = tmp_path / "file.pem"
    if content is not None:
        file.write_text(content)
    kafka = {"bootstrap_servers": "127.0.0.1:1", "security": {"protocol": "SSL", key: str(file)}}
    settings = load(kafka=kafka).with_run_dir(tmp_path)
    with pytest.raises(ConfigurationError, match=rf"kafka\.security\.{key}: {file} cannot be loaded \(.+\)\."):
        check_kafka(settings, lambda _: None)
