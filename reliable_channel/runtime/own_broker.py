"""Checks, before Kafka is used, what its clients do not report: that the Kafka on the default port is this project's
own broker and not another one, and that certificate files can be loaded."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Callable
from contextlib import closing

from reliable_channel.config import KafkaSettings, SecuritySettings, Settings
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.runtime.broker import files
from reliable_channel.runtime.logs import quiet_kafka_client
from reliable_channel.runtime.topics import unreachable
from reliable_channel.transport.kafka_clients import open_client

_log = logging.getLogger(__name__)


@quiet_kafka_client()
def cluster_id_of(kafka: KafkaSettings, timeout_s: float = 3.0) -> str | None:
    """Return the id of the cluster that answers; None if none answers in time."""
    from kafka import KafkaAdminClient
    from kafka.errors import KafkaError

    try:
        options = {**kafka.clients().admin, "bootstrap_timeout_ms": int(timeout_s * 1000)}
        with closing(open_client(KafkaAdminClient, options)) as admin:
            cluster_id = admin.describe_cluster().get("cluster_id")
    except (KafkaError, OSError):
        return None
    return None if cluster_id is None else str(cluster_id)


def own_cluster_id(settings: Settings) -> str | None:
    """Return the cluster id of the broker in the run directory; None if none was ever started there."""
    try:
        lines = (files(settings).data / "meta.properties").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition("=")[2].strip() for line in lines if line.startswith("cluster.id=")), None)


def check_kafka(
    settings: Settings, ask: Callable[[KafkaSettings], str | None] = cluster_id_of, *, for_spark: bool = False
) -> None:
    """Raise ``EnvironmentFault`` if ``kafka.bootstrap_servers`` is not set and the Kafka on the default port is not the
    broker of this run directory. Otherwise raise ``ConfigurationError`` if a certificate file cannot be loaded.

    A missing answer is not a fault here, because the next connection reports it better. But Spark's (``for_spark``)
    waits some minutes first, and says nothing, so a warning is logged at once."""
    is_own = settings.kafka.bootstrap_servers is None
    if not is_own:
        _load_certificates(settings.kafka.security)
    cluster_id = ask(settings.kafka) if is_own or for_spark else None
    if cluster_id is None and for_spark:
        _log.warning("%s Ingest waits for it some minutes.", unreachable(settings.kafka))
    if is_own and cluster_id is not None and cluster_id != own_cluster_id(settings):
        raise EnvironmentFault(
            f"The Kafka at {settings.kafka.servers} is not the broker of the run directory {settings.paths.run_dir}.",
            "Set kafka.bootstrap_servers to use it, or kafka.broker.port to start ours elsewhere.",
        )


def _load_certificates(security: SecuritySettings) -> None:
    """Load the certificate files: kafka-python tries until its time-out if it cannot, and does not say why."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # With an empty password OpenSSL refuses an encrypted key; without one it asks on the terminal.
    password = security.ssl_key_password.get_secret_value() if security.ssl_key_password else ""
    for key, load in (
        ("ssl_ca_file", context.load_verify_locations),
        ("ssl_certificate_file", lambda file: context.load_cert_chain(file, password=password)),
    ):
        file = getattr(security, key)
        try:
            if file:
                load(file)
        except OSError as error:
            raise ConfigurationError(
                f"kafka.security.{key}: {file} cannot be loaded ({error.strerror or error}).",
                "Name a file that can be read, in PEM; ssl_key_password is that of its private key.",
            ) from None
