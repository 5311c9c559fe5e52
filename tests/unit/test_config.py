"""The configuration: what is set wins in order, what is wrong is refused by name, what is secret is never shown."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from kafka.cluster import get_ip_port_afi

from reliable_channel.channel.config import ReliableChannelConfig, ReliableChannelOptions
from reliable_channel.config import ChannelTopic, StoreNodeSettings, load
from reliable_channel.config.channels import Preset
from reliable_channel.config.fixed import FIXED
from reliable_channel.config.loading import _find_type, _list_keys
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.segmentation.config import SegmentationConfig
from reliable_channel.messaging.config import MessagingConfig
from reliable_channel.runtime.participant import topic_config
from reliable_channel.transport.kafka_clients import connect_without_creating

SECRET = "hunter2-and-more"


def write(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "mine.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def refusal(source: Path | str | None = None) -> str:
    with pytest.raises(ConfigurationError) as refused:
        load(source)
    return str(refused.value)


@pytest.mark.parametrize("name", ["local", "cluster"])
def test_the_shipped_files_are_valid(name: str) -> None:
    assert load(name).kafka.topics.envelopes == "waku.envelopes"


def test_the_local_file_uses_the_own_broker_and_the_cluster_file_another() -> None:
    assert load("local").kafka.servers == "127.0.0.1:9092"
    assert load("cluster").kafka.servers.startswith("kafka-1:")


def test_the_environment_wins_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, "kafka: {topics: {partitions: 7}, broker: {port: 1111}}")
    monkeypatch.setenv("RELIABLE_CHANNEL__KAFKA__BROKER__PORT", "2222")
    kafka = load(file).kafka
    assert (kafka.broker.port, kafka.topics.partitions) == (2222, 7)


def test_the_environment_can_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL_CONFIG", str(write(tmp_path, "spark: {shuffle_partitions: 7}")))
    assert load().spark.shuffle_partitions == 7


def test_core_sections_are_the_cores_own_dataclasses_with_its_defaults() -> None:
    settings = load("local")
    assert settings.segmentation == SegmentationConfig()
    assert settings.sds == SdsParameters()
    assert settings.rate_limit == RateLimitConfig()


def test_core_sections_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__SDS__CAUSAL_HISTORY_SIZE", "5")
    monkeypatch.setenv("RELIABLE_CHANNEL__SDS__FILTER_FORMAT__CAPACITY", "500")
    monkeypatch.setenv("RELIABLE_CHANNEL__CHANNELS__CONTENT_TOPICS", '["/mine/1/talk/proto"]')
    settings = load("local")
    assert settings.sds.causal_history_size == 5
    assert settings.sds.filter_format.capacity == 500
    assert settings.channels.content_topics[0].content_topic == "/mine/1/talk/proto"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kafk: {}", ["kafk", "Sections are kafka"]),
        ("kafka: {brokr: {}}", ["kafka.brokr"]),
        ("kafka: {broker: {prt: 1}}", ["kafka.broker.prt", "port"]),
        ("kafka: {broker: {port: none}}", ["kafka.broker.port", "'none'"]),
        ("kafka: {broker: {port: 70000}}", ["kafka.broker.port", "65536"]),
        ("kafka: {bootstrap_servers: nowhere}", ["kafka.bootstrap_servers", "'nowhere'"]),
        ("kafka: {bootstrap_servers: '2001:db8::1:9092'}", ["kafka.bootstrap_servers", "'2001:db8::1:9092'"]),
        ("spark: {shuffle_partitions: 0}", ["spark.shuffle_partitions"]),
        ("sds: {causal_history: 3}", ["sds.causal_history", "causal_history_size"]),
        ("sds: {filter_format: {size: 3}}", ["sds.filter_format.size", "capacity"]),
        ("rate_limit: {epoch: 3}", ["rate_limit.epoch", "epoch_size_ms"]),
        ("segmentation: {segment_size_bytes: 3}", ["segment_size_bytes", "64"]),
        ("quotas: {sender: {messages: 0}}", ["quotas.sender.messages: Input should be greater than 0, got 0. "]),
        ("quotas: {sender: {message: 3}}", ["unknown key quotas.sender.message. Keys of quotas.sender are messages,"]),
        ("channels: {content_topics: [{family: spec}]}", ["channels.content_topics.0.content_topic"]),
        ("pipeline: {starting_offsets: middle}", ["pipeline.starting_offsets", "'middle'"]),
        ("kafka: {topics: {outgoing: waku.envelopes}}", ["kafka.topics", "must be three topics"]),
        ("paths: {data_dir: /here, checkpoint_dir: /here/}", ["paths", "must be two directories"]),
        ("kafka: {broker: {port: 1, port: 2}}", ["line 1", "port appears twice"]),
        ("kafka: [", ["line 1", "not valid YAML"]),
        ("- kafka", ["no mapping"]),
        ("1: 2", ["a key must be text"]),
    ],
)
def test_a_wrong_key_or_value_in_a_file_is_refused_by_name(tmp_path: Path, text: str, words: list[str]) -> None:
    file = write(tmp_path, text)
    message = refusal(file)
    for word in [str(file), *words]:
        assert word in message


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("RELIABLE_CHANNEL__KAFKAA__BROKER__PORT", "1", "names no section"),
        ("RELIABLE_CHANNEL__KAFKA__BROKER__PRT", "1", "kafka.broker.prt"),
        ("RELIABLE_CHANNEL__KAFKA__BROKER__PORT", "x", "kafka.broker.port"),
        ("RELIABLE_CHANNEL__SDS__CAUSAL_HISTORY_SIZE", "-1", "causal_history_size"),
        ("RELIABLE_CHANNEL__SPARK__CONF", "{", "not valid JSON"),
        ("RELIABLE_CHANNEL__CHANNELS__CONTENT_TOPICS", "/my-app/1/*/proto", "not valid JSON"),
    ],
)
def test_a_wrong_environment_variable_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, word: str
) -> None:
    monkeypatch.setenv(variable, value)
    message = refusal("local")
    assert word in message
    assert variable in message


def test_a_section_that_is_no_mapping_is_refused_also_where_a_variable_sets_a_key_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__KAFKA__BROKER__PORT", "9093")
    assert "kafka is no mapping" in refusal(write(tmp_path, "kafka: kafka-1:9092"))


def test_a_missing_file_is_refused_by_name() -> None:
    assert "nowhere.yaml" in refusal("nowhere.yaml")


@pytest.mark.parametrize(
    "text",
    [
        f"kafka: {{security: {{protocol: SASL_SSL, sasl_mechanism: PLAIN, sasl_password: {SECRET}}}}}",  # no user name
        f"kafka: {{security: {{sasl_pasword: {SECRET}}}}}",
        f"kafka: {{security: {{sasl_password: [{SECRET}]}}}}",
        f"kafka: {{client: {{sasl_oauth_token: [{SECRET}]}}}}",
        f"kafka: {SECRET}",
        f"kafka: {{security: {SECRET}}}",
        f"kafka: {{security: {{sasl_password: {SECRET}: x}}}}",
        f"{SECRET}",
        f"node: {{url: 'http://operator:{SECRET}@127.0.0.1:8645'}}",
        f"store: {{nodes: ['http://operator:{SECRET}@127.0.0.1:8645']}}",
    ],
)
def test_no_error_text_shows_a_secret(tmp_path: Path, text: str) -> None:
    assert SECRET not in refusal(write(tmp_path, text))


@pytest.mark.parametrize("variable", ["KAFKA", "KAFKA__SECURITY", "KAFKA__SECURITY__SSL_KEY", "KAFKA__CLIENT"])
def test_no_error_text_shows_a_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(f"RELIABLE_CHANNEL__{variable}", SECRET)
    assert SECRET not in refusal("local")


def secured(tmp_path: Path) -> Path:
    return write(
        tmp_path,
        f"""
        kafka:
          bootstrap_servers: one:9093,two:9093
          security:
            protocol: SASL_SSL
            sasl_mechanism: SCRAM-SHA-512
            sasl_username: me
            sasl_password: '{SECRET}"\\'
            ssl_ca_file: /etc/ca.pem
            ssl_certificate_file: /etc/me.pem
            ssl_key_password: {SECRET}
          client: {{request_timeout_ms: 1234, ssl_check_hostname: false}}
          spark: {{max.poll.records: 77, ssl.endpoint.identification.algorithm: ""}}
        """,
    )


def test_secrets_are_masked_wherever_the_configuration_is_shown(tmp_path: Path) -> None:
    settings = load(secured(tmp_path))
    for shown in (settings.to_yaml(), repr(settings), str(settings), str(settings.kafka.model_dump())):
        assert SECRET not in shown
    assert "**********" in settings.to_yaml()


def test_secrets_among_sparks_own_settings_are_masked_and_the_others_shown(tmp_path: Path) -> None:
    conf = {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.ssl.keyPassword": SECRET, "spark.executor.memory": "4g"}
    settings = load(write(tmp_path, f"spark: {{conf: {json.dumps(conf)}}}"))
    assert settings.as_values()["spark"]["conf"] == {**dict.fromkeys(conf, "**********"), "spark.executor.memory": "4g"}
    assert settings.spark.conf == conf
    assert "71077345" not in refusal(write(tmp_path, "spark: {conf: {spark.ssl.keyPassword: 71077345}}"))


def test_a_wrong_key_of_the_node_is_the_only_one_that_is_refused(tmp_path: Path) -> None:
    """The section messaging takes from the node what it leaves out."""
    refused = refusal(write(tmp_path, "node: {url: ftp://node}\nmessaging: {}"))
    assert "node.url" in refused
    assert "messaging" not in refused


def test_tls_and_sasl_reach_kafka_python(tmp_path: Path) -> None:
    clients = load(secured(tmp_path)).kafka.clients()
    creates_nothing = {"kafka_client": connect_without_creating}
    assert clients.consumer == {**clients.producer, "isolation_level": "read_committed"}
    assert clients.producer == {**clients.admin, **creates_nothing}
    assert clients.admin == {
        "bootstrap_servers": ["one:9093", "two:9093"],
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": SECRET + '"\\',
        "ssl_check_hostname": False,
        "ssl_cafile": "/etc/ca.pem",
        "ssl_certfile": "/etc/me.pem",
        "ssl_keyfile": "/etc/me.pem",
        "ssl_password": SECRET,
        "request_timeout_ms": 1234,
    }


def test_brokers_with_ipv6_addresses_reach_both_clients(tmp_path: Path) -> None:
    servers = "[2001:db8::1]:9093,[::1]:9092,kafka-3:9092"
    kafka = load(write(tmp_path, f"kafka: {{bootstrap_servers: '{servers}'}}")).kafka
    assert kafka.spark_options()["kafka.bootstrap.servers"] == servers
    hosts = [get_ip_port_afi(server)[:2] for server in kafka.clients().consumer["bootstrap_servers"]]
    assert hosts == [("2001:db8::1", 9093), ("::1", 9092), ("kafka-3", 9092)]


def test_no_client_lets_the_broker_create_a_topic() -> None:
    """A topic that was deleted came back with the broker's defaults, from whoever still read or wrote it."""
    kafka = load(None).kafka
    for options in (kafka.clients().consumer, kafka.clients().producer):
        client = options["kafka_client"](**options)
        client.cluster.add_topic("deleted")
        assert client.cluster.metadata_request().allow_auto_topic_creation is False
    assert kafka.spark_options()["kafka.allow.auto.create.topics"] == "false"


def test_every_option_is_one_that_kafka_python_knows(tmp_path: Path) -> None:
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    clients = load(secured(tmp_path)).kafka.clients()
    assert set(clients.consumer) <= set(KafkaConsumer.DEFAULT_CONFIG)
    assert set(clients.producer) <= set(KafkaProducer.DEFAULT_CONFIG)
    assert set(clients.admin) <= set(KafkaAdminClient.DEFAULT_CONFIG)


def test_the_shared_quotas_follow_from_that_of_a_sender(tmp_path: Path) -> None:
    quotas = load(write(tmp_path, "quotas: {sender: {messages: 10}}")).quotas
    assert [each.messages for each in (quotas.channel, quotas.content_topic, quotas.pattern, quotas.pubsub_topic)] == [
        40, 100, 200, 300,
    ]  # fmt: skip
    assert quotas.channel.bytes == 4 * quotas.sender.bytes
    assert load("local").quotas.pubsub_topic.messages == 3_000_000


def test_an_option_reaches_the_clients_that_have_it() -> None:
    given = {"fetch_max_bytes": 7, "linger_ms": 8, "retry_backoff_ms": 9}
    clients = load(None, kafka={"client": given}).kafka.clients()
    reached = [
        {name: one[name] for name in given if name in one}
        for one in (clients.consumer, clients.producer, clients.admin)
    ]
    assert reached == [
        {"fetch_max_bytes": 7, "retry_backoff_ms": 9},
        {"linger_ms": 8, "retry_backoff_ms": 9},
        {"retry_backoff_ms": 9},
    ]


def test_an_option_that_no_client_has_is_refused_by_name() -> None:
    sentence = "kafka.client.request_timeout is not an option of kafka-python; did you mean request_timeout_ms?"
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        load(None, kafka={"client": {"request_timeout": 1}})


@pytest.mark.parametrize("name", ["group_id", "auto_offset_reset", "enable_auto_commit", "value_deserializer"])
def test_an_option_that_would_lose_messages_is_refused_by_name(name: str) -> None:
    """They were passed on: positions were committed before anything was stored, or records skipped silently."""
    with pytest.raises(ConfigurationError, match=f"kafka.client.{name} is set by this program"):
        load(None, kafka={"client": {name: "latest"}})


def test_tls_and_sasl_reach_spark(tmp_path: Path) -> None:
    options = load(secured(tmp_path)).kafka.spark_options()
    assert options.pop("kafka.sasl.jaas.config") == (
        f'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="{SECRET}\\"\\\\";'
    )
    assert options == {
        "kafka.bootstrap.servers": "one:9093,two:9093",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.isolation.level": "read_committed",
        "kafka.allow.auto.create.topics": "false",
        "kafka.default.api.timeout.ms": "20000",
        "kafka.request.timeout.ms": "20000",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": "/etc/ca.pem",
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": "/etc/me.pem",
        "kafka.ssl.key.password": SECRET,
        "kafka.ssl.endpoint.identification.algorithm": "",
        "kafka.max.poll.records": "77",
    }


@pytest.mark.parametrize("name", ["request.timeout.ms", "default.api.timeout.ms"])
def test_who_gives_spark_one_of_kafkas_timeouts_gets_kafkas_other_one(name: str) -> None:
    """Kafka's client refuses a request.timeout.ms above default.api.timeout.ms."""
    options = load(None, kafka={"spark": {name: "40000"}}).kafka.spark_options()
    assert {key: value for key, value in options.items() if "timeout" in key} == {f"kafka.{name}": "40000"}


def test_what_is_shown_can_be_read_again(tmp_path: Path) -> None:
    settings = load("local", spark={"conf": {"spark.eventLog.enabled": "false"}})
    assert load(write(tmp_path, settings.to_yaml())) == settings


def test_settings_survive_pickling() -> None:
    settings = load("local")
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301 - our own bytes


def test_paths_are_absolute_and_uris_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = load(write(tmp_path, "paths: {run_dir: here, data_dir: 's3a://bucket/tables/'}")).paths
    assert paths.run_dir == str(tmp_path / "here")
    assert paths.checkpoint("ack") == str(tmp_path / "here" / "checkpoints" / "ack")
    assert paths.table("acks") == "s3a://bucket/tables/acks"


def test_the_run_directory_must_be_local(tmp_path: Path) -> None:
    assert "run_dir" in refusal(write(tmp_path, "paths: {run_dir: 's3a://bucket/run'}"))


def test_the_first_matching_content_topic_counts(tmp_path: Path) -> None:
    channels = load(
        write(tmp_path, "channels: {content_topics: [{content_topic: /a/1/x/proto, family: nim}, /a/1/*/proto]}")
    ).channels
    assert [topic and topic.family for topic in map(channels.topic_for, ("/a/1/x/proto", "/a/1/y/proto", "/b"))] == [
        "nim",
        "auto",
        None,
    ]


def test_a_channel_can_be_tied_to_a_pubsub_topic(tmp_path: Path) -> None:
    channels = load(
        write(tmp_path, "channels: {content_topics: [{content_topic: /a, pubsub_topic: /waku/2/rs/1/0}]}")
    ).channels
    assert channels.topic_for("/a", "/waku/2/rs/1/0") is not None
    assert channels.topic_for("/a", "/waku/2/rs/1/1") is None


def test_every_section_is_documented_in_yaml() -> None:
    assert set(yaml.safe_load(load("local").to_yaml())) == set(type(load("local")).model_fields)


@pytest.mark.parametrize("key", sorted(FIXED))
def test_a_constant_of_the_code_is_no_setting_and_exists(key: str, tmp_path: Path) -> None:
    *sections, last = key.split(".")
    content: Any = {last: 1}
    for section in reversed(sections):
        content = {section: [content] if section in {"nodes", "content_topics"} else content}
    with pytest.raises(ConfigurationError, match=rf"{re.escape(key)} is no setting"):
        load(write(tmp_path, yaml.safe_dump(content)))
    section = {
        "store.nodes": StoreNodeSettings,
        "messaging": MessagingConfig,
        "channels.content_topics": ChannelTopic,
    }.get(".".join(sections))
    assert last in _list_keys(section or _find_type(sections))


def test_a_constant_in_the_json_of_a_variable_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__KAFKA", '{"topics": {"max_message_bytes": 1000}}')
    sentence = "environment variable RELIABLE_CHANNEL__KAFKA: kafka.topics.max_message_bytes is no setting"
    with pytest.raises(ConfigurationError, match=re.escape(sentence)):
        load("local")


def test_a_constant_in_the_environment_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__SDS__TRACKING", "1")
    with pytest.raises(ConfigurationError, match=r"RELIABLE_CHANNEL__SDS__TRACKING: sds\.tracking is no setting"):
        load("local")


PRESETS = {
    "april_2026": ReliableChannelConfig.of_april_2026(),
    "march_2026": ReliableChannelConfig.of_march_2026(),
    "first_revision": ReliableChannelOptions().config(),
}


def test_every_preset_is_tested() -> None:
    assert set(PRESETS) == set(Preset)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_by_name_has_the_rules_of_its_revision(tmp_path: Path, name: str) -> None:
    settings = load(
        write(tmp_path, f"participant: {{preset: {name}}}\nstore: {{nodes: [{{url: http://127.0.0.1:1}}]}}")
    )
    config = topic_config(settings, "/my-app/1/plain/proto")
    assert config == PRESETS[name]
    assert load(write(tmp_path, settings.to_yaml())) == settings


def test_what_is_given_counts_before_the_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__PARTICIPANT__PRESET", "march_2026")
    text = "{sds: {max_retransmissions: 3}, rate_limit: {enabled: false}}"
    settings = load(write(tmp_path, text))
    assert (settings.sds.max_retransmissions, settings.rate_limit.enabled) == (3, False)
    assert (settings.rate_limit.counts, settings.participant.verify_chunk_chain) == ("messages", True)


def test_an_unknown_preset_is_refused_by_name(tmp_path: Path) -> None:
    sentence = refusal(write(tmp_path, "participant: {preset: june_2026}"))
    assert "participant.preset" in sentence and "march_2026" in sentence


def test_a_history_longer_than_the_log_is_refused_with_a_remedy_that_a_file_can_follow(tmp_path: Path) -> None:
    """The remedy was to raise sds.max_log_entries, which is no setting."""
    (tmp_path / "long.yaml").write_text("sds: {causal_history_size: 20000}")
    with pytest.raises(ConfigurationError, match=r"sds\.causal_history_size is above .* Use fewer\."):
        load(tmp_path / "long.yaml")
