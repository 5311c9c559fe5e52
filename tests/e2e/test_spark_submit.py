"""The ``spark-submit`` way, with the real ``spark-submit``: properties file, ``--jars``, ``--py-files``, ``--conf``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_channel.config import Settings
from reliable_channel.config.model import default_cache_dir
from reliable_channel.core.sds import SdsChannel
from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.lake.checkpoints import read_checkpoint
from reliable_channel.lake.read import rows_of
from reliable_channel.runtime import jars
from reliable_channel.runtime.build import make_bridge
from reliable_channel.runtime.java import INTERPRETED
from reliable_channel.runtime.participant import ParticipantOptions, participant
from reliable_channel.runtime.topics import ensure_evidence_topic, ensure_topics
from tests.support.environment import plain_environment
from tests.support.waiting import WAIT_S, until

pytestmark = [pytest.mark.kafka, pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
CONTENT_TOPIC = b"/reliable-channel/1/submitted/proto"


def start(job: Path, py_files: Path, environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    """Start one job as a user would; nothing of this process's Spark is inherited."""
    bin_dir = Path(sys.executable).parent
    jar_paths = ",".join(map(str, jars.paths("spark", default_cache_dir())))
    command = [str(bin_dir / "spark-submit"), "--master", "local[2]", "--driver-memory", "1g"]
    command += ["--properties-file", str(ROOT / "conf" / "spark-defaults.conf"), "--jars", jar_paths]
    command += ["--py-files", str(py_files)]
    for name, value in {"spark.sql.shuffle.partitions": "3", "spark.ui.enabled": "false", **INTERPRETED}.items():
        command += ["--conf", f"{name}={value}"]
    return subprocess.Popen(
        [*command, str(job), *arguments],
        env=plain_environment() | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"} | environment,
        cwd=job.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def submit(job: Path, py_files: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run one job to its end."""
    with start(job, py_files, environment, *arguments) as process:
        try:
            output, errors = process.communicate(timeout=300)
        finally:
            process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def prepare_topic(broker: Settings, name: str, run_dir: Path) -> dict[str, str]:
    """Create a topic of one partition for envelopes; returns the environment of jobs that read it."""
    topics = broker.kafka.topics.model_copy(update={"envelopes": name, "partitions": 1})
    ensure_topics(broker.kafka.model_copy(update={"topics": topics}))
    return {
        "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": broker.kafka.servers,
        "RELIABLE_CHANNEL__KAFKA__TOPICS__ENVELOPES": name,
        "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(run_dir),
    }


def produce(broker: Settings, topic: str, *values: bytes) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(**broker.kafka.clients().producer, acks="all")
    headers = [("pubsub_topic", b"/waku/2/rs/1/0"), ("source", b"relay")]
    for value in values:
        producer.send(topic, value, key=CONTENT_TOPIC, headers=headers)
    producer.flush()
    producer.close()


def test_a_submitted_job_reads_kafka_and_writes_delta_with_what_it_was_given(
    broker: Settings, py_files: Path, tmp_path: Path
) -> None:
    produce(broker, broker.kafka.topics.envelopes, b"one", b"two")
    environment = {"RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": broker.kafka.servers}
    done = submit(Path(__file__).with_name("submitted_job.py"), py_files, environment, str(tmp_path))
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["partitions"] == "3"  # --conf stands before the configuration
    assert found["zone"] == "UTC"  # from the properties file
    assert "reliable_channel.zip" in found["driver"]
    rows = rows_of(DeltaTable(str(tmp_path / "table")))
    mine = [row for row in rows if row["key"] == CONTENT_TOPIC.decode()]
    assert sorted(row["value"] for row in mine if row["value"] in (b"one", b"two")) == [b"one", b"two"]
    assert all("reliable_channel.zip" in row["origin"] for row in mine)


def stop_after_a_micro_batch(
    send: Callable[[int, int], None],
    number: int,
    name: str,
    py_files: Path,
    environment: dict[str, str],
    here: Settings,
) -> None:
    """Run a job continuously, and send it a signal when it has planned its first micro-batch."""
    with start(ROOT / "jobs" / f"{name}.py", py_files, environment, "--continuous") as process:
        try:
            until(lambda: (at := read_checkpoint(here.paths, name)) and at.planned is not None, process=process)
            send(process.pid, number)
            _, errors = process.communicate(timeout=WAIT_S)
        finally:
            process.kill()
    assert process.returncode == 0, errors[-4000:]
    assert "Traceback" not in errors
    left = read_checkpoint(here.paths, name)
    assert left is not None
    assert not left.interrupted


def conversation(texts: list[bytes]) -> list[bytes]:
    """A channel's messages as Alice's node sends them, in order: the last one in several segments."""
    config = SegmentationConfig(segment_size_bytes=64)
    channel = SdsChannel("submitted", "alice")
    now = int(time.time() * 1000)
    envelopes = []
    for number, text in enumerate(texts):
        for outgoing in channel.send(contents_for(text, config), now + number).outgoing:
            envelope = WakuMessage(outgoing.data, CONTENT_TOPIC.decode(), timestamp=(now + number) * 1_000_000)
            envelopes.append(encode_waku_message(envelope))
    return envelopes


def test_the_jobs_deliver_what_was_sent_though_signals_end_them_and_maintenance_leaves_it(
    broker: Settings, py_files: Path, tmp_path: Path
) -> None:
    """SIGTERM goes to the JVM, of which the job is a child; Ctrl-C in a terminal to both. Both end a job after its
    micro-batch."""
    environment = prepare_topic(broker, "waku.submitted", tmp_path)
    here = broker.with_run_dir(tmp_path)
    texts = [b"first", b"second", bytes(range(200))]
    produce(broker, "waku.submitted", *conversation(texts))
    stop_after_a_micro_batch(os.killpg, signal.SIGINT, "ingest", py_files, environment, here)
    stop_after_a_micro_batch(os.kill, signal.SIGTERM, "reassembly", py_files, environment, here)
    done = submit(ROOT / "jobs" / "ack.py", py_files, environment, "--once")
    assert done.returncode == 0, done.stderr[-4000:]
    done = submit(ROOT / "jobs" / "maintain.py", py_files, environment)
    assert done.returncode == 0, f"maintain: {done.stderr[-4000:]}"
    assert "sds_messages: 0 rows deleted" in done.stdout
    delivered = rows_of(DeltaTable(str(tmp_path / "tables" / "delivered_messages")))
    assert [row["payload"] for row in sorted(delivered, key=lambda row: row["delivery_seq"])] == texts


def test_the_submitted_sender_waits_for_the_listener_and_counts_what_is_new(
    broker: Settings, py_files: Path, tmp_path: Path
) -> None:
    here = broker.with_run_dir(tmp_path / "listener")
    ensure_evidence_topic(broker)
    loop = make_bridge(here, loop=True)
    loop.start()
    heard: list[bytes] = []
    schema = pa.schema([("row_id", pa.string()), ("payload", pa.binary())])
    source = str(tmp_path / "outgoing")
    environment = {
        "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": broker.kafka.servers,
        "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(tmp_path / "sender"),
    }
    arguments = ["--channel", "submitted", "--from", source, "--until", "delivered", "--wait", "120"]
    try:
        with participant(here, ParticipantOptions("submitted", sender_id="bob")) as bob:
            bob.channel.on_message_received(lambda event: heard.append(event.message))
            bob.start()
            for text, said in (
                (b"one", "1 rows are sent, 1 of them new, 1"),
                (b"two", "2 rows are sent, 1 of them new, 2"),
            ):
                write_deltalake(
                    source, pa.Table.from_pylist([{"row_id": text.decode(), "payload": text}], schema), mode="append"
                )
                done = submit(ROOT / "jobs" / "send.py", py_files, environment, *arguments)
                assert done.returncode == 0, done.stderr[-4000:]
                assert f"{said} acknowledged by somebody" in done.stdout
    finally:
        loop.stop()
    assert heard == [b"one", b"two"]
    sent = rows_of(DeltaTable(str(tmp_path / "sender" / "tables" / "sent_rows")))
    assert sorted(row["row_id"] for row in sent) == ["one", "two"]
