"""Runs the development broker: one real single-node KRaft Kafka on loopback, from the cached jars.

Two ways to run it: ``start``/``stop``/``status`` manage one in the background, with its state (data,
``server.properties``, pid file, log) in ``<run_dir>/kafka``; ``running_broker`` runs one on a free port for the
duration of a ``with`` block and leaves no process behind, even if this process is killed.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import as_file
from pathlib import Path

from reliable_channel.config import KafkaSettings, Settings
from reliable_channel.config.loading import find_shipped
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.runtime import jars
from reliable_channel.runtime.java import IN_ENGLISH, java, jvm_environment
from reliable_channel.runtime.progress import progress
from reliable_channel.runtime.topics import ensure_topics, probe
from reliable_channel.transport.private_files import private_directory

HOST = "127.0.0.1"
START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0


class BrokerFiles:
    """The paths of one broker's state; ``output`` is the JVM's own output, outside its logging."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.properties = home / "server.properties"
        self.data = home / "data"
        self.pid = home / "broker.pid"
        self.log = home / "broker.log"
        self.output = home / "broker.out"


def files(settings: Settings) -> BrokerFiles:
    """Return the paths of the background broker's state for this configuration."""
    return BrokerFiles(Path(settings.paths.run_dir) / "kafka")


def running_pid(broker_files: BrokerFiles) -> int | None:
    """Return the pid of the broker with these files, or None; a stale pid file of a crash does not count."""
    try:
        pid = int(broker_files.pid.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return pid if str(broker_files.properties) in _read_command_line(pid) else None


def start(settings: Settings) -> int:
    """Start the background broker unless it runs, and create the topics; returns its pid once a client can produce.

    Raises ``EnvironmentFault``: port taken, Java or jars missing, disk full, not ready in 90 s.
    """
    broker_files, kafka = files(settings), settings.kafka
    if (pid := running_pid(broker_files)) is None:
        command = _prepare(broker_files, settings, kafka.broker.port)
        process = _launch(command, subprocess.DEVNULL, broker_files)
        pid = process.pid
        broker_files.pid.write_text(str(pid), encoding="ascii")
        try:
            _wait_until_ready(process, broker_files, kafka)
        except BaseException:  # Ctrl-C too: nobody else would stop it
            stop(settings)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
            raise
    ensure_topics(kafka)
    return pid


def stop(settings: Settings) -> bool:
    """Stop the background broker and wait for its end; False if none was running."""
    broker_files = files(settings)
    pid = running_pid(broker_files)
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
        if not _wait_until_gone(pid, broker_files, STOP_TIMEOUT_S):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _wait_until_gone(pid, broker_files, STOP_TIMEOUT_S)
    broker_files.pid.unlink(missing_ok=True)
    return pid is not None


@contextmanager
def running_broker(
    settings: Settings, home: Path | None = None, port: int | None = None, extra: str = ""
) -> Iterator[Settings]:
    """Run a broker on a free port for the duration of the block; creates the topics and yields the settings that point
    to it.

    Its state in ``home`` (default ``<run_dir>/kafka-<port>``) is kept afterwards. The broker ends with the block, with
    this process (even after SIGKILL), and on Ctrl-C. ``extra``: additional lines of ``server.properties``, placed
    before ours (such as a listener with TLS on ``port``). Raises ``EnvironmentFault`` like ``start``.
    """
    port = port or free_port()
    broker_files = BrokerFiles(home or Path(settings.paths.run_dir) / f"kafka-{port}")
    there = settings.with_servers(f"{HOST}:{port}")
    command = _prepare(broker_files, settings, port, extra)
    supervisor = [sys.executable, "-m", "reliable_channel.runtime.supervise", str(os.getpid()), *command]
    process = _launch(supervisor, subprocess.PIPE, broker_files)
    try:
        _wait_until_ready(process, broker_files, there.kafka)
        ensure_topics(there.kafka)
        yield there
    finally:
        if process.stdin is not None:
            process.stdin.close()
        with suppress(KeyboardInterrupt):  # a second Ctrl-C while the broker ends
            process.wait(STOP_TIMEOUT_S)
        if process.poll() is None:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


def free_port() -> int:
    """Return a loopback port on which nothing listens at this moment."""
    with socket.socket() as probe_socket:
        probe_socket.bind((HOST, 0))
        return int(probe_socket.getsockname()[1])


def _launch(command: list[str], stdin: int, broker_files: BrokerFiles) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that Ctrl-C does not reach it, with its output in a file."""
    with broker_files.output.open("wb") as output:
        return subprocess.Popen(
            command, stdin=stdin, stdout=output, stderr=output, start_new_session=True, env=jvm_environment()
        )


def _prepare(broker_files: BrokerFiles, settings: Settings, port: int, extra: str = "") -> list[str]:
    """Write the properties and format a new data directory; returns the command that runs the broker."""
    _refuse_taken(port)
    for directory in (broker_files.home, broker_files.data):
        private_directory(directory)
    broker_files.properties.write_text(
        _format_properties(broker_files, settings.kafka, port, free_port()) + extra, encoding="utf-8"
    )
    classpath = os.pathsep.join(str(jar) for jar in jars.paths("kafka", settings.paths.cache_dir))
    with as_file(find_shipped("kafka-log4j2.properties")) as log4j2:
        logging = [f"-Dlog4j2.configurationFile=file:{log4j2}", f"-Dkafka.logs.dir={broker_files.home}"]
    runtime = [java(), "-Djava.awt.headless=true", IN_ENGLISH, *logging]
    if not (broker_files.data / "meta.properties").is_file():
        cluster = (
            base64.urlsafe_b64encode(b"\x00" + secrets.token_bytes(15)).decode().rstrip("=")
        )  # never begins with -
        formatting = [*runtime, "-XX:TieredStopAtLevel=1", "-cp", classpath, "kafka.tools.StorageTool", "format"]
        formatting += ["--standalone", "--cluster-id", cluster, "--config", str(broker_files.properties)]
        done = subprocess.run(
            formatting, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=jvm_environment()
        )
        if done.returncode != 0:
            raise _explain_output(done.stdout + done.stderr, port, broker_files)
    heap = settings.kafka.broker.heap
    options = [f"-Xmx{heap}", "-XX:+ExitOnOutOfMemoryError", *shlex.split(os.environ.get("KAFKA_OPTS", ""))]
    return [*runtime, *options, "-cp", classpath, "kafka.Kafka", str(broker_files.properties)]


def _format_properties(broker_files: BrokerFiles, kafka: KafkaSettings, port: int, controller_port: int) -> str:
    # Java reads properties as Latin-1, with the escapes of JSON. One node needs one replica of each internal topic, and
    # a consumer of it need not wait, three seconds by default, for others of its group.
    largest = kafka.topics.max_message_bytes
    return f"""\
# Written at every start of the development broker.
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}
advertised.listeners=PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={HOST}:{controller_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={json.dumps(str(broker_files.data))[1:-1]}
auto.create.topics.enable=false
offsets.topic.replication.factor=1
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
message.max.bytes={largest}
replica.fetch.max.bytes={largest}
socket.request.max.bytes={max(104857600, 2 * largest)}
"""


def _refuse_taken(port: int) -> None:
    with socket.socket() as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            attempt.bind((HOST, port))
        except OSError:
            raise _make_port_fault(port) from None


def _make_port_fault(port: int) -> EnvironmentFault:
    return EnvironmentFault(
        f"Port {port} on {HOST} is taken by another program.",
        "Stop it, or choose another port: RELIABLE_CHANNEL__KAFKA__BROKER__PORT.",
    )


def _wait_until_ready(process: subprocess.Popen[bytes], broker_files: BrokerFiles, kafka: KafkaSettings) -> None:
    """Wait until a client's record is acknowledged; raises if the process ends first, or after 90 s."""
    port = int(kafka.servers.rsplit(":", 1)[1])
    deadline = time.monotonic() + START_TIMEOUT_S
    with progress("Starting the Kafka broker") as advance:
        while time.monotonic() < deadline:
            advance(0, "")
            if process.poll() is not None:
                raise _explain_output(
                    _read_tail(broker_files.output) + _read_tail(broker_files.log), port, broker_files
                )
            # The port first: a client waits for its whole time if nothing listens yet.
            if _listens(port) and probe(kafka, 10.0):
                return
            time.sleep(0.1)
        raise EnvironmentFault(
            f"The Kafka broker was not ready in {START_TIMEOUT_S:.0f} s.", f"Read {broker_files.log}."
        )


def _listens(port: int) -> bool:
    with socket.socket() as attempt:
        attempt.settimeout(1)
        return attempt.connect_ex((HOST, port)) == 0


def _explain_output(output: str, port: int, broker_files: BrokerFiles) -> EnvironmentFault:
    """Reduce the broker's output to one sentence."""
    lower = output.lower()
    if "no space left" in lower or "file too large" in lower or "quota exceeded" in lower:
        return EnvironmentFault(
            f"The disk is full: the Kafka broker cannot write {broker_files.home}.",
            "Free some space, or set paths.run_dir elsewhere.",
        )
    if "address already in use" in lower:
        return _make_port_fault(port)
    errors = [line for line in output.splitlines() if "Exception" in line or " ERROR " in line or " FATAL " in line]
    detail = (errors or output.splitlines() or ["no output"])[-1].strip()[:200]
    return EnvironmentFault(
        f"The Kafka broker ended while starting: {detail}.", f"Read {broker_files.log} and {broker_files.output}."
    )


def _read_tail(file: Path, size: int = 20_000) -> str:
    with suppress(OSError):
        return file.read_bytes()[-size:].decode(errors="replace")
    return ""


def _read_command_line(pid: int) -> str:
    """The command line of a process, empty if there is none; a zombie has none either."""
    proc = Path("/proc") / str(pid) / "cmdline"
    if Path("/proc/self/cmdline").exists():
        with suppress(OSError):
            return proc.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return ""
    answer = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return answer.stdout


def _wait_until_gone(pid: int, broker_files: BrokerFiles, timeout_s: float) -> bool:
    """Wait until the process has ended (reaping it if it is our child)."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        if str(broker_files.properties) not in _read_command_line(pid):
            return True
        time.sleep(0.05)
    return False
