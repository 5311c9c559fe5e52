"""TLS, client certificates and SASL of the configuration, against a real broker that asks for them, with both
clients."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import UserScramCredentialUpsertion
from py4j.protocol import Py4JJavaError
from pydantic import SecretStr
from pyspark.errors import PySparkException

from reliable_channel.config import SecuritySettings, Settings, load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.runtime.broker import free_port, running_broker
from reliable_channel.runtime.build import kafka_node
from reliable_channel.runtime.faults import as_fault
from reliable_channel.runtime.topics import ensure_topics
from reliable_channel.transport import kafka_consumer
from reliable_channel.transport.health import HealthState
from tests.support.certificates import DAY, Authority
from tests.support.waiting import WAIT_S, until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.slow]
PASSWORD = 'two "words" \\ and a slash'
TOPIC = "/a/1/b/proto"


@pytest.fixture(scope="module")
def authority() -> Authority:
    """Signs the certificates of the broker and of its clients."""
    return Authority()


@pytest.fixture(scope="module")
def tls_port() -> int:
    """Where the broker wants a certificate in place of a password."""
    return free_port()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory, authority: Authority, tls_port: int) -> Iterator[Settings]:
    """A broker with a SASL_SSL listener and one that wants client certificates; the settings get in by password."""
    directory = tmp_path_factory.mktemp("secured")
    ca, own = directory / "ca.pem", directory / "broker.pem"
    ca.write_text(authority.pem)
    own.write_text(authority.issue())
    port, inner, controller = free_port(), free_port(), free_port()
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security"
    jaas = f'{module}.plain.PlainLoginModule required user_me="{escaped}";'.replace("\\", "\\\\")  # once more: a file
    listeners = ",".join(
        f"{name}://127.0.0.1:{at}"
        for name, at in (("SASL_SSL", port), ("SSL", tls_port), ("PLAINTEXT", inner), ("CONTROLLER", controller))
    )
    extra = f"""\
listeners={listeners}
advertised.listeners={listeners}
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listener.security.protocol.map=SASL_SSL:SASL_SSL,SSL:SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-512
listener.name.sasl_ssl.plain.sasl.jaas.config={jaas}
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={module}.scram.ScramLoginModule required;
listener.name.ssl.ssl.client.auth=required
ssl.keystore.type=PEM
ssl.keystore.location={own}
ssl.truststore.type=PEM
ssl.truststore.location={ca}
"""
    security = SecuritySettings(
        protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="me",
        sasl_password=SecretStr(PASSWORD),
        ssl_ca_file=str(ca),
    )
    settings = load("local", paths={"run_dir": str(directory)}, node={"pubsub_topic": "/waku/2/rs/16/32"})
    settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"security": security})})
    with running_broker(settings, port=port, extra=extra) as there:
        yield there


@pytest.fixture
def by_certificate(secured: Settings, tls_port: int, authority: Authority, tmp_path: Path) -> Settings:
    """The settings that get in by a certificate, which is in ``<run_dir>/me.pem``."""
    file = tmp_path / "me.pem"
    file.write_text(authority.issue())
    security = SecuritySettings(
        protocol="SSL", ssl_ca_file=secured.kafka.security.ssl_ca_file, ssl_certificate_file=str(file)
    )
    kafka = secured.kafka.model_copy(
        update={"security": security, "client": {"bootstrap_timeout_ms": SecretStr("2000")}}
    )
    return secured.with_run_dir(tmp_path).model_copy(update={"kafka": kafka}).with_servers(f"127.0.0.1:{tls_port}")


def copy_and_read(settings: Settings, spark: SparkSession, text: bytes) -> None:
    """Write a record by one client and read it by the other."""
    producer = KafkaProducer(**settings.kafka.clients().producer, acks="all")
    producer.send(settings.kafka.topics.envelopes, text, key=TOPIC.encode()).get(WAIT_S)
    producer.close()
    assert text in read(settings, spark)


def read(settings: Settings, spark: SparkSession) -> list[bytes]:
    records = spark.read.format("kafka").options(**settings.kafka.spark_options())
    table = records.option("subscribe", settings.kafka.topics.envelopes).load()
    try:
        assert "words" not in table._jdf.queryExecution().toString()
        return [bytes(row.value) for row in table.select("value").collect()]
    except (PySparkException, Py4JJavaError) as error:
        raise as_fault(error) from None


def test_both_clients_get_in_by_password(secured: Settings, spark: SparkSession) -> None:
    copy_and_read(secured, spark, b"by PLAIN")
    admin: Any = KafkaAdminClient(**secured.kafka.clients().admin)
    with closing(admin):
        assert admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("scrambled", "SCRAM-SHA-512", PASSWORD)]
        ) == {"scrambled": None}
    scram = secured.kafka.security.model_copy(update={"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "scrambled"})
    there = secured.model_copy(update={"kafka": secured.kafka.model_copy(update={"security": scram})})
    copy_and_read(there, spark, b"by SCRAM")


def test_both_clients_get_in_by_certificate(by_certificate: Settings, spark: SparkSession) -> None:
    copy_and_read(by_certificate, spark, b"by certificate")


@pytest.mark.parametrize(("begins_in", "ends_in"), [(-2 * DAY, -DAY), (DAY, 2 * DAY)], ids=["expired", "not yet valid"])
def test_a_certificate_out_of_its_time_is_refused_with_a_sentence(
    by_certificate: Settings, spark: SparkSession, authority: Authority, begins_in: dt.timedelta, ends_in: dt.timedelta
) -> None:
    (Path(by_certificate.paths.run_dir) / "me.pem").write_text(authority.issue(begins_in, ends_in))
    with pytest.raises(EnvironmentFault, match=r"cannot be used .* Check kafka\.bootstrap_servers and security"):
        ensure_topics(by_certificate.kafka, timeout_s=5)
    with pytest.raises(EnvironmentFault, match="TLS with Kafka fails, as where a certificate has expired"):
        read(by_certificate, spark)


def test_a_certificate_that_is_renewed_under_a_running_participant_is_used(
    by_certificate: Settings, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_consumer, "TOPIC_REFRESH_S", 0.1)  # which connects anew
    file = Path(by_certificate.paths.run_dir) / "me.pem"

    def renew(certificate: str) -> None:
        new = file.with_suffix(".new")
        new.write_text(certificate)
        new.replace(file)

    node = kafka_node(by_certificate)
    node.start()
    try:
        renew(authority.issue(-2 * DAY, -DAY))
        until(lambda: node.health().state is HealthState.UNHEALTHY and "does not answer" in node.health().detail)
        renew(authority.issue())
        until(lambda: "Kafka answers" in node.health().detail)
    finally:
        node.stop()


def test_a_wrong_password_is_one_sentence_without_it(secured: Settings) -> None:
    wrong = secured.kafka.security.model_copy(update={"sasl_password": SecretStr("not-the-password")})
    with pytest.raises(EnvironmentFault, match=r"cannot be used .* Check kafka\.bootstrap_servers") as refused:
        ensure_topics(secured.kafka.model_copy(update={"security": wrong}), timeout_s=5)
    assert "not-the-password" not in str(refused.value)


def test_an_unknown_certificate_is_refused(secured: Settings) -> None:
    untrusting = secured.kafka.security.model_copy(update={"ssl_ca_file": None})
    with pytest.raises(EnvironmentFault, match="cannot be used"):
        ensure_topics(secured.kafka.model_copy(update={"security": untrusting}), timeout_s=5)
