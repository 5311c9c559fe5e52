"""Configures the Kafka brokers, authentication and topics (docs/howto/kafka.md).

One set of TLS and SASL settings serves both clients: ``clients()`` for kafka-python, ``spark_options()`` for the Kafka
source and sink of Spark. Options that these do not cover are passed on: to the kafka-python clients that have them
through ``client``, to Spark through ``spark``.
"""

from __future__ import annotations

import difflib
import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from reliable_channel.config.section import Bytes, Count, Section
from reliable_channel.transport.kafka_clients import KafkaClients, connect_without_creating

SET_HERE = frozenset(
    {"group_id", "group_instance_id", "enable_auto_commit", "auto_offset_reset", "transactional_id", "kafka_client"}
    | {"key_serializer", "value_serializer", "key_deserializer", "value_deserializer", "consumer_timeout_ms"}
)
"""Options of kafka-python that decide what is read again after a crash, or in which form. With another value of them,
messages are lost without a word."""
Port = Annotated[int, Field(gt=0, lt=65536)]
_SERVER = r"([^\s,:\[\]]+|\[[0-9a-fA-F:.]+\]):[0-9]+"
"""A name or address, an IPv6 address in brackets, and a port."""
TopicName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]


def _write_text(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, bool | int | float) else value


PassThrough = Annotated[SecretStr, BeforeValidator(_write_text)]
"""A value that is passed on unread; it is masked, because it may be a secret."""


class TopicSettings(Section):
    """The topics and the settings they are created with; existing topics are not changed.

    ``max_message_bytes`` is well above the network's 150 KiB: oversized envelopes that a hostile peer makes a gateway
    write must arrive and be quarantined, not become a producer error that nobody sees.
    """

    envelopes: TopicName = "waku.envelopes"
    outgoing: TopicName = "waku.outgoing"
    dispatched: TopicName = Field(
        default="waku.dispatched", description="the result of each outgoing envelope, written by the bridge"
    )
    partitions: Count = 3
    replication_factor: Count = 1
    retention_ms: int = Field(default=7 * 24 * 3600 * 1000, ge=-1, description="ms; -1 keeps everything")
    max_message_bytes: Bytes = 16 * 1024 * 1024
    timestamp_type: Literal["LogAppendTime", "CreateTime"] = Field(
        default="LogAppendTime",
        description="CreateTime trusts the producer's time: only to replay recorded or simulated traffic",
    )

    @model_validator(mode="after")
    def _refuse_one_topic(self) -> TopicSettings:
        if len({self.envelopes, self.outgoing, self.dispatched}) < 3:
            # A bridge would send what it received, again and again.
            raise ValueError("envelopes, outgoing and dispatched must be three topics")
        return self


class SecuritySettings(Section):
    """TLS and SASL, in the terms of kafka-python. Files are PEM and readable by the driver and the executors."""

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    ssl_ca_file: str | None = Field(default=None, description="PEM: the authorities that signed the brokers")
    ssl_certificate_file: str | None = Field(default=None, description="PEM: private key and certificate chain")
    ssl_key_password: SecretStr | None = None

    @model_validator(mode="after")
    def _check_completeness(self) -> SecuritySettings:
        if self.protocol.startswith("SASL") and not (self.sasl_mechanism and self.sasl_username and self.sasl_password):
            raise ValueError(f"{self.protocol} needs sasl_mechanism, sasl_username and sasl_password")
        if not self.protocol.startswith("SASL") and self.sasl_mechanism:
            raise ValueError(f"sasl_mechanism has no effect with protocol {self.protocol}; use SASL_SSL")
        if not self.protocol.endswith("SSL") and (self.ssl_ca_file or self.ssl_certificate_file):
            raise ValueError(f"ssl_* has no effect with protocol {self.protocol}; use SSL or SASL_SSL")
        return self


class BrokerSettings(Section):
    """The project's own single-node broker, used when ``bootstrap_servers`` is not set. Loopback only."""

    port: Port = 9092
    heap: str = Field(default="512m", pattern=r"^[0-9]+[mMgG]$")


class KafkaSettings(Section):
    """``bootstrap_servers`` unset means the project's own broker on loopback."""

    bootstrap_servers: str | None = Field(default=None, pattern=f"^{_SERVER}(,{_SERVER})*$")
    topics: TopicSettings = TopicSettings()
    security: SecuritySettings = SecuritySettings()
    broker: BrokerSettings = BrokerSettings()
    client: dict[str, PassThrough] = Field(
        default={}, description="more options for kafka-python, by its names; each reaches the clients that have it"
    )
    spark: dict[str, PassThrough] = Field(default={}, description="more options for Spark, without the prefix `kafka.`")

    @property
    def servers(self) -> str:
        """``host:port[,host:port…]`` of the cluster in use, the project's own broker included."""
        return self.bootstrap_servers or f"127.0.0.1:{self.broker.port}"

    @model_validator(mode="after")
    def _check_options(self) -> KafkaSettings:
        known = set().union(*_list_options().values()) if self.client else set()
        for name in self.client:
            if name not in known:
                near = difflib.get_close_matches(name.replace(".", "_"), known, 1)
                guess = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"kafka.client.{name} is not an option of kafka-python{guess}")
            if name in SET_HERE:
                raise ValueError(f"kafka.client.{name} is set by this program; leave it out")
        return self

    def clients(self) -> KafkaClients:
        """The options of each kind of kafka-python client, secrets in clear: never print them."""
        kinds = {kind: self._common_options() for kind in ("consumer", "producer", "admin")}
        # kafka-python's default delivers the records of aborted transactions (docs/howto/kafka.md, *What is read*).
        kinds["consumer"]["isolation_level"] = "read_committed"
        for kind in ("consumer", "producer"):
            kinds[kind]["kafka_client"] = connect_without_creating
        if self.client:
            given = {key: _parse(value.get_secret_value()) for key, value in self.client.items()}
            for kind, known in _list_options().items():
                kinds[kind] |= {name: value for name, value in given.items() if name in known}
        return KafkaClients(**kinds)

    def _common_options(self) -> dict[str, Any]:
        s = self.security
        options: dict[str, Any] = {"bootstrap_servers": self.servers.split(","), "security_protocol": s.protocol}
        if s.protocol.startswith("SASL") and s.sasl_password is not None:
            options |= {
                "sasl_mechanism": s.sasl_mechanism,
                "sasl_plain_username": s.sasl_username,
                "sasl_plain_password": s.sasl_password.get_secret_value(),
            }
        if s.protocol.endswith("SSL"):
            if s.ssl_ca_file:
                options["ssl_cafile"] = s.ssl_ca_file
            if s.ssl_certificate_file:
                options |= {"ssl_certfile": s.ssl_certificate_file, "ssl_keyfile": s.ssl_certificate_file}
            if s.ssl_key_password is not None:
                options["ssl_password"] = s.ssl_key_password.get_secret_value()
        return options

    def spark_options(self) -> dict[str, str]:
        """Options for Spark's ``format("kafka")``, prefixed ``kafka.``, secrets in clear: never print them."""
        s = self.security
        options = {
            "bootstrap.servers": self.servers,
            "security.protocol": s.protocol,
            "isolation.level": "read_committed",
            "allow.auto.create.topics": "false",  # as :func:`connect_without_creating` does
        }
        if s.protocol.startswith("SASL") and s.sasl_password is not None:
            module = "plain.PlainLoginModule" if s.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
            options["sasl.mechanism"] = str(s.sasl_mechanism)
            options["sasl.jaas.config"] = (
                f"org.apache.kafka.common.security.{module} required "
                f"username={_quote(s.sasl_username or '')} password={_quote(s.sasl_password.get_secret_value())};"
            )
        if s.protocol.endswith("SSL"):
            if s.ssl_ca_file:
                options |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": s.ssl_ca_file}
            if s.ssl_certificate_file:
                options |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": s.ssl_certificate_file}
            if s.ssl_key_password is not None:
                options["ssl.key.password"] = s.ssl_key_password.get_secret_value()
        given = {key: value.get_secret_value() for key, value in self.spark.items()}
        # Where a broker dies, Spark asks anew only after this time where the topic ends. By default, after a minute.
        if not given.keys() & {"default.api.timeout.ms", "request.timeout.ms"}:
            options |= {"default.api.timeout.ms": "20000", "request.timeout.ms": "20000"}
        options |= given
        return {f"kafka.{key}": value for key, value in options.items()}


def _quote(text: str) -> str:
    """A JAAS string: double quotes, backslash escapes."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _list_options() -> dict[str, set[str]]:
    """Kind of kafka-python client → the names of its options."""
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer

    kinds = {"consumer": KafkaConsumer, "producer": KafkaProducer, "admin": KafkaAdminClient}
    return {kind: set(client.DEFAULT_CONFIG) for kind, client in kinds.items()}


def _parse(text: str) -> Any:
    """A pass-through value as number, boolean or list where it reads as JSON, else as text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
