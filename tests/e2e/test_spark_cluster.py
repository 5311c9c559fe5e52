"""The jobs on a real standalone cluster: a master, two workers, executors that have only what was shipped to them, and
tables and checkpoints on an object store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest
from deltalake import DeltaTable

from reliable_channel.config import Settings
from reliable_channel.config.model import default_cache_dir
from reliable_channel.core.sds import SdsChannel
from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.lake.read import rows_of
from reliable_channel.runtime.jars import paths as shipped_jars
from reliable_channel.runtime.java import SHORT_LIVED
from reliable_channel.runtime.topics import ensure_topics
from tests.support.environment import plain_environment
from tests.support.object_store import ObjectStore, object_store, s3_jars
from tests.support.spark_cluster import SparkCluster, processes_of, spark_cluster
from tests.support.waiting import WAIT_S, until

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.faults]
ROOT = Path(__file__).parents[2]
SIX_SEGMENTS = SegmentationConfig(segment_size_bytes=64, enable_reed_solomon=True, parity_rate=0.5)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("s3")) as there:
        yield there


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, store: ObjectStore) -> Iterator[SparkCluster]:
    """Its machines have credentials for the store, each its own."""
    home = tmp_path_factory.mktemp("cluster")
    with spark_cluster(home, environment=store.credentials) as there:
        yield there
    assert processes_of(home) == []


@pytest.fixture(scope="module")
def executors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive of ``make executors``."""
    archive = tmp_path_factory.mktemp("archive") / "executors.tar.gz"
    pack = [sys.executable, str(ROOT / "scripts" / "pack_executors.py"), str(archive)]
    subprocess.run(pack, check=True, timeout=300)
    return archive


@pytest.fixture(scope="module")
def submit(cluster: SparkCluster, executors: Path, py_files: Path) -> Submit:
    """With the archive shipped to every executor."""
    return Submit(cluster, py_files, archive=executors)


@pytest.fixture(scope="module")
def submit_to_shared(cluster: SparkCluster, executors: Path, py_files: Path, store: ObjectStore) -> Submit:
    """With the archive unpacked once, at a place that all machines have, and with what Spark needs for the store."""
    place = cluster.home / "shared"
    with tarfile.open(executors) as archive:
        archive.extractall(place, filter="fully_trusted")  # noqa: S202  our own
    return Submit(cluster, py_files, python=place / "bin" / "python", jars=s3_jars(), conf=store.spark_conf())


class Submit:
    """``spark-submit`` as docs/scale-out.md shows it: executors have ``python``, or else that of an archive."""

    def __init__(
        self,
        cluster: SparkCluster,
        py_files: Path,
        *,
        archive: Path | None = None,
        python: Path | None = None,
        jars: Sequence[Path] = (),
        conf: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.cluster = cluster
        self._conf = {
            "spark.ui.enabled": "false",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.defaultJavaOptions": SHORT_LIVED,
        } | conf
        self._python = "./environment/bin/python" if python is None else str(python)
        self._options = {
            "--master": cluster.master,
            "--deploy-mode": "client",
            "--driver-memory": "768m",
            "--executor-memory": "512m",
            "--executor-cores": "1",
            "--properties-file": str(ROOT / "conf" / "spark-standalone.conf"),
            "--jars": ",".join(map(str, [*shipped_jars("spark", default_cache_dir()), *jars])),
            "--py-files": str(py_files),
        }
        if archive is not None:
            self._options["--archives"] = f"{archive}#environment"

    def __call__(
        self,
        job: Path,
        *arguments: str,
        meanwhile: Callable[[subprocess.Popen[str]], object] = lambda _: None,
        **environment: str,
    ) -> None:
        """Run one job to its end, which must be a good one. ``meanwhile`` is called while it runs."""
        command = [str(Path(sys.executable).parent / "spark-submit")]
        for option in self._options.items():
            command += option
        for key, value in self._conf.items():
            command += ["--conf", f"{key}={value}"]
        python = {"PYSPARK_PYTHON": self._python, "PYSPARK_DRIVER_PYTHON": sys.executable}
        python["PYTHONPATH"] = self._options["--py-files"]  # for the Python that Spark starts on the driver
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(
                [*command, str(job), *arguments],
                env=plain_environment("PYTHON") | python | {"SPARK_LOCAL_IP": "127.0.0.1"} | environment,
                cwd=self.cluster.home,
                stdout=said,
                stderr=said,
                text=True,
            )
            try:
                meanwhile(process)
                process.wait(WAIT_S)
            finally:
                process.kill()
            said.seek(0)
            assert process.returncode == 0, f"{job.name}: {said.read()[-6000:]}"


def kill_the_executor_that_writes(
    table: str, home: Path, store: ObjectStore
) -> Callable[[subprocess.Popen[str]], None]:
    """Hold up the first files of a table, and SIGKILL the executor that sends one of them."""

    def meanwhile(process: subprocess.Popen[str]) -> None:
        with store.holding("file", "PUT", f"/tables/{table}/part-", "uploadId=") as held:
            until(held.exists, "no file was written", process=process)
            (machine,) = re.findall(r"Credential=(worker-\d)/", held.read_text())
            (executor,) = executors_below(home / machine)
            os.kill(executor, signal.SIGKILL)

    return meanwhile


def executors_below(home: Path) -> list[int]:
    """Process ids of the executors' JVMs."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line, directory = (entry / "cmdline").read_bytes(), (entry / "cwd").resolve(strict=True)
        except OSError:  # it has ended
            continue
        if (
            b"CoarseGrainedExecutorBackend" in line
            and line.split(b"\0")[0].endswith(b"java")
            and directory.is_relative_to(home)
        ):
            found.append(int(entry.name))
    return found


def test_executors_run_only_what_was_shipped_to_them(submit: Submit, tmp_path: Path) -> None:
    submit(Path(__file__).with_name("cluster_job.py"), str(tmp_path / "found.json"))
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["driver"] == {"prefix": sys.prefix, "master": submit.cluster.master}
    directories = {executor["directory"] for executor in found["executors"]}
    assert len({Path(d).relative_to(submit.cluster.home).parts[0] for d in directories}) == 2  # both workers
    for executor in found["executors"]:
        for place in ("prefix", "pandas", "package"):
            here = Path(executor["directory"])
            assert (here / executor[place]).is_relative_to(here), executor
        assert not any(entry.startswith((sys.prefix + "/lib/python", str(ROOT / "reliable"))) and "pyspark" not in entry
                       for entry in executor["path"]), executor["path"]  # fmt: skip


def conversations() -> tuple[list[tuple[str, bytes]], Counter[tuple[str, bytes]]]:
    """(content topic, envelope) in the order of the network, and what was sent. The third text is six segments, of
    which one is lost and rebuilt from parity; one record comes twice."""
    records, sent = [], Counter[tuple[str, bytes]]()
    now = int(time.time() * 1000)
    for name in ("one", "two", "three", "four"):
        topic = f"/reliable-channel/1/cluster-{name}/proto"
        channel = SdsChannel(name, f"sender of {name}")
        for number, text in enumerate([b"first", b"second", bytes(range(250)), b"last"]):
            payload = name.encode() + text
            sent[topic, payload] += 1
            outgoing = channel.send(contents_for(payload, SIX_SEGMENTS), now + number).outgoing
            kept = [message for index, message in enumerate(outgoing) if len(outgoing) == 1 or index != 1]
            for message in kept:
                envelope = WakuMessage(message.data, topic, timestamp=(now + number) * 1_000_000)
                records.append((topic, encode_waku_message(envelope)))
        records.append(records[-2])
    return records, sent


def test_the_jobs_on_a_cluster_and_an_object_store_deliver_what_was_sent_also_when_an_executor_dies(
    submit_to_shared: Submit, broker: Settings, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in store.credentials("driver").items():
        monkeypatch.setenv(name, value)
    submit = submit_to_shared
    from kafka import KafkaProducer

    topics = broker.kafka.topics.model_copy(update={"envelopes": "waku.cluster", "partitions": 2})
    ensure_topics(broker.kafka.model_copy(update={"topics": topics}))
    records, sent = conversations()
    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    headers = [("pubsub_topic", b"/waku/2/rs/1/0"), ("source", b"relay")]
    numbers = {topic: number % 2 for number, topic in enumerate(dict.fromkeys(topic for topic, _ in records))}
    for topic, envelope in records:
        producer.send(topics.envelopes, envelope, topic.encode(), headers, partition=numbers[topic])
    producer.flush()
    producer.close()
    dies = kill_the_executor_that_writes("ordered_sds_messages", submit.cluster.home, store)
    for job in ("ingest", "reassembly", "ack"):
        submit(
            ROOT / "jobs" / f"{job}.py",
            "--once",
            meanwhile=dies if job == "reassembly" else lambda _: None,
            RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS=broker.kafka.servers,
            RELIABLE_CHANNEL__KAFKA__TOPICS__ENVELOPES=topics.envelopes,
            RELIABLE_CHANNEL__PATHS__RUN_DIR=str(tmp_path),
            RELIABLE_CHANNEL__PATHS__DATA_DIR="s3a://bucket/tables",
            RELIABLE_CHANNEL__PATHS__CHECKPOINT_DIR="s3a://bucket/checkpoints",
            RELIABLE_CHANNEL__SPARK__SHUFFLE_PARTITIONS="2",
        )
    delivered = rows_of(DeltaTable("s3a://bucket/tables/delivered_messages"))
    assert Counter((row["content_topic"], row["payload"]) for row in delivered) == sent
    rebuilt = rows_of(DeltaTable("s3a://bucket/tables/reassembled_messages"))
    assert [row["repaired"] for row in rebuilt] == [[1]] * 4
    # spark-submit names an application after its file.
    assert {app["name"] for app in submit.cluster.state()["completedapps"]} >= {
        f"{job}.py" for job in ("ingest", "reassembly", "ack")
    }
