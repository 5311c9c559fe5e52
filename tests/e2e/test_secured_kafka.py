"""TLS and SASL of the configuration, against a real broker that asks for both, with both clients."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from reliable_channel.config import SecuritySettings, Settings, load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.runtime.broker import free_port, running_broker
from reliable_channel.runtime.java import java
from reliable_channel.runtime.topics import ensure_topics
from tests.support.waiting import WAIT_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.slow]
PASSWORD = 'two "words" \\ and a slash'
STORE_PASSWORD = "changeit"


def certificate(directory: Path) -> tuple[Path, Path]:
    """A key store for the broker, and its self-signed certificate as PEM for the clients; by Java's own tool."""
    keytool = str(Path(java()).resolve().with_name("keytool"))
    store, pem = directory / "broker.p12", directory / "ca.pem"
    common = ["-keystore", str(store), "-storepass", STORE_PASSWORD, "-alias", "broker"]
    generate = ["-genkeypair", "-keyalg", "RSA", "-dname", "CN=broker", "-ext", "SAN=ip:127.0.0.1", "-validity", "2"]
    subprocess.run([keytool, *generate, "-storetype", "PKCS12", *common], check=True, capture_output=True)
    subprocess.run([keytool, "-exportcert", "-rfc", "-file", str(pem), *common], check=True, capture_output=True)
    return store, pem


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """A broker with a SASL_SSL listener, and the settings that get in."""
    directory = tmp_path_factory.mktemp("secured")
    store, pem = certificate(directory)
    port, inner, controller = free_port(), free_port(), free_port()
    escaped = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    jaas = f'{module} required user_me="{escaped}";'.replace("\\", "\\\\")  # a properties file escapes once more
    extra = f"""\
listeners=SASL_SSL://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{inner},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=SASL_SSL://127.0.0.1:{port},PLAINTEXT://127.0.0.1:{inner},CONTROLLER://127.0.0.1:{controller}
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listener.security.protocol.map=SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config={jaas}
ssl.keystore.type=PKCS12
ssl.keystore.location={store}
ssl.keystore.password={STORE_PASSWORD}
"""
    security = SecuritySettings(
        protocol="SASL_SSL",
        sasl_mechanism="PLAIN",
        sasl_username="me",
        sasl_password=SecretStr(PASSWORD),
        ssl_ca_file=str(pem),
    )
    settings = load("local", paths={"run_dir": str(directory)})
    settings = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"security": security})})
    with running_broker(settings, port=port, extra=extra) as there:
        yield there


def test_both_clients_get_in(secured: Settings, spark: SparkSession) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(**secured.kafka.clients().producer, acks="all")
    producer.send(secured.kafka.topics.envelopes, b"over TLS", key=b"/a/1/b/proto").get(WAIT_S)
    producer.close()
    records = spark.read.format("kafka").options(**secured.kafka.spark_options())
    read = records.option("subscribe", secured.kafka.topics.envelopes).load()
    assert [bytes(row.value) for row in read.select("value").collect()] == [b"over TLS"]
    plan = read._jdf.queryExecution().toString()
    assert "words" not in plan


def test_a_wrong_password_is_one_sentence_without_it(secured: Settings) -> None:
    wrong = secured.kafka.security.model_copy(update={"sasl_password": SecretStr("not-the-password")})
    with pytest.raises(EnvironmentFault, match=r"cannot be used .* Check kafka\.bootstrap_servers") as refused:
        ensure_topics(secured.kafka.model_copy(update={"security": wrong}), timeout_s=5)
    assert "not-the-password" not in str(refused.value)


def test_an_unknown_certificate_is_refused(secured: Settings) -> None:
    untrusting = secured.kafka.security.model_copy(update={"ssl_ca_file": None})
    with pytest.raises(EnvironmentFault, match="cannot be used"):
        ensure_topics(secured.kafka.model_copy(update={"security": untrusting}), timeout_s=5)
