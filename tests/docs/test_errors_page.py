"""Every error on docs/errors.md is provoked as a user would, and prints what the page says.

Those that need Spark are provoked in tests/spark, by ``expected("heading")``."""

from __future__ import annotations

import errno
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from reliable_channel.channel import SqlitePersistence
from reliable_channel.cli import main
from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.read import open_table
from reliable_channel.lake.tables import SDS_MESSAGES
from reliable_channel.runtime.faults import print_fault
from tests.support.error_page import PAGE, exit_code, messages, pattern_of
from tests.support.ports import refusing_port

SPARK_TESTS = Path(__file__).parents[1] / "spark"
ELSEWHERE = (
    *SPARK_TESTS.glob("test_*.py"),
    *(
        SPARK_TESTS.parent / "unit" / "pipeline" / f"test_{name}.py"
        for name in (
            *("maintain", "one_driver", "restored_copies", "settings_guard", "slow_start", "table_features"),
            "transactions",
        )
    ),
    *(
        SPARK_TESTS.parent / "kafka" / f"test_{name}.py"
        for name in ("unreadable", "cluster_id", "kafka_node", "odd_topics")
    ),
    SPARK_TESTS.parent / "unit" / "lake" / "test_restored.py",
    SPARK_TESTS.parent / "unit" / "runtime" / "test_errors_of_spark.py",
    SPARK_TESTS.parent / "unit" / "transport" / "test_kafka_offsets.py",
)
QUICK = '{"bootstrap_timeout_ms": 300, "request_timeout_ms": 300}'


@dataclass
class Shell:
    """The command line in an empty directory."""

    place: Path
    tables: Path
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, **environment: str) -> tuple[int, str]:
        """Run a command line; environment variables as keywords, ``X__Y`` being ``RELIABLE_CHANNEL__X__Y``."""
        for name, value in environment.items():
            self.monkeypatch.setenv(name if name.isupper() and "__" not in name else f"RELIABLE_CHANNEL__{name}", value)
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return int(ended.value.code or 0), self.capsys.readouterr().err

    def file(self, name: str, content: str | bytes) -> str:
        path = self.place / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)


@pytest.fixture
def shell(
    tmp_path: Path, sample_tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path / "run"))
    return Shell(tmp_path, sample_tables, monkeypatch, capsys)


@contextmanager
def taken_port() -> Iterator[str]:
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield str(taken.getsockname()[1])


def forbidden(place: Path) -> str:
    """A directory that this user must not make: root may make one everywhere but among the kernel's own."""
    if os.geteuid() == 0:
        return "/sys/forbidden"
    directory = place / "forbidden"
    directory.mkdir(mode=0o500)
    return str(directory / "notebooks")


def check(heading: str, ended: tuple[int, str]) -> None:
    status, printed = ended
    assert pattern_of(heading).search(printed), printed
    assert status == exit_code(heading)
    assert "Traceback" not in printed


def provoke(heading: str, shell: Shell) -> tuple[int, str]:
    elsewhere = {"KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1", "KAFKA__CLIENT": QUICK}  # not a Kafka of this machine
    match heading:
        case "A file that does not exist":
            return shell("--config", "nope.yaml", "config", "show")
        case "A key that does not exist":
            return shell("-c", shell.file("a.yaml", "spark: {shufle_partitions: 3}"), "config", "show")
        case "A value of the wrong type":
            return shell("-c", shell.file("a.yaml", "spark: {shuffle_partitions: many}"), "config", "show")
        case "A file that is not YAML":
            return shell("-c", shell.file("a.yaml", "spark:\n  a: [1\n"), "config", "show")
        case "A variable with an unknown section":
            return shell("config", "show", SPRAK__UI="true")
        case "A message that may take longer than its segments are kept":
            return shell("config", "show", RATE_LIMIT__ENABLED="true", SEGMENTATION__MAX_SET_LIFETIME_MS="3600000")
        case "A password that is missing":
            return shell("config", "show", KAFKA__SECURITY__PROTOCOL="SASL_SSL")
        case "No Java":
            return shell("run", "--once", JAVA_HOME="/nowhere", **elsewhere)
        case "A Java that is too old":
            (shell.place / "bin").mkdir()
            java = Path(shell.file("bin/java", "#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n"))
            java.chmod(0o755)
            return shell("run", "--once", JAVA_HOME=str(shell.place), **elsewhere)
        case "Missing jars":
            return shell("jars", PATHS__CACHE_DIR=str(shell.place))
        case "A port that is taken":
            with taken_port() as port:
                return shell("kafka", "start", KAFKA__BROKER__PORT=port)
        case "A package that is not installed":
            shell.monkeypatch.setitem(sys.modules, "duckdb", None)
            shell.monkeypatch.delitem(sys.modules, "reliable_channel.analysis.report.snapshot", raising=False)
            return shell("sql", "SELECT 1")
        case "No permission":
            return shell("notebooks", forbidden(shell.place))
        case "A full disk":
            full = Path("/dev/full").open("w", encoding="utf-8")  # noqa: SIM115 - closing it fails once more
            shell.monkeypatch.setattr(sys, "stdout", full)
            ended = shell("tables", "list")
            with suppress(OSError):
                full.close()
            return ended
        case "A path below a file":
            return shell("notebooks", shell.file("file", "") + "/notebooks")
        case "A directory that the demo did not make":
            shell.file("mine.txt", "")
            return shell("demo", "--dir", str(shell.place))
        case "The development broker does not run":
            with refusing_port() as port:
                return shell("kafka", "topics", KAFKA__BROKER__PORT=port, KAFKA__CLIENT=QUICK)
        case "A wrong broker address":
            with refusing_port() as port:
                return shell("kafka", "topics", KAFKA__BOOTSTRAP_SERVERS=f"127.0.0.1:{port}", KAFKA__CLIENT=QUICK)
        case "A certificate file that cannot be loaded":
            security = {"KAFKA__SECURITY__PROTOCOL": "SSL", "KAFKA__SECURITY__SSL_CA_FILE": "nope.pem"}
            return shell("kafka", "topics", KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1", **security)
        case "A participant finds no broker":
            database = str(shell.place / "channel.sqlite")
            with refusing_port() as port:
                return shell(
                    "send", "lobby", "Hello", "--database", database, KAFKA__BROKER__PORT=port, KAFKA__CLIENT=QUICK
                )
        case "An address without a port":
            return shell("kafka", "topics", KAFKA__BOOTSTRAP_SERVERS="kafka-1")
        case "A key file that holds no key":
            return shell("send", "lobby", "Hello", "--key-file", shell.file("key", "xyz"))
        case "A message that is too large":
            large = shell.file("large", bytes(2_000_000))
            return shell("send", "lobby", "--file", large, "--transport", "waku-rest")
        case "An empty message":
            return shell("send", "lobby", "", "--transport", "waku-rest")
        case "A missing file":
            return shell("send", "lobby", "--file", str(shell.place / "nothing"))
        case "Two processes with one sender":
            database = shell.place / "channel.sqlite"
            other = SqlitePersistence(database)
            release = other.acquire("alice")
            try:
                return shell(
                    "send", "lobby", "Hello", "--sender", "alice", "--database", str(database),
                    "--transport", "waku-rest",
                )  # fmt: skip
            finally:
                release()
                other.close()
        case "A Waku node that does not answer":
            node = ("--transport", "waku-rest", "--timeout", "0.5")
            with refusing_port() as port:
                return shell("send", "lobby", "Hello", *node, NODE__URL=f"http://127.0.0.1:{port}")
        case "A server off loopback without a token":
            return shell("api", "serve", "--host", "0.0.0.0")  # noqa: S104  it is refused
        case "An unknown quarantine reason":
            return shell("requeue", "--reason", "nonsense")
        case "A table that cannot be read":
            log = shell.place / "tables" / "quarantine" / "_delta_log"
            log.mkdir(parents=True)
            (log / "00000000000000000000.json").write_text("{")
            return shell("status", "--no-kafka", PATHS__DATA_DIR=str(shell.place / "tables"))
        case "A directory that tables cannot be in":
            return shell("status", "--no-kafka", PATHS__DATA_DIR=str(shell.place / "feature%2Fx"))
        case "A table that is missing":
            with pytest.raises(EnvironmentFault) as fault:
                open_table(PathSettings(data_dir=str(shell.place)), SDS_MESSAGES)
            return print_fault(fault.value, "ack"), shell.capsys.readouterr().err
        case "An invalid time":
            return shell("report", "--from", "yesterdayish")
        case "An argument that is not UTF-8":
            return shell("report", "--channel", "caf\udce9")
        case "An unknown channel":
            return shell("report", "--channel", "nope", PATHS__DATA_DIR=str(shell.tables))
    raise NotImplementedError(heading)


HERE = re.findall(r'^        case "(.+)":$', Path(__file__).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("heading", HERE)
def test_the_error_prints_what_the_page_says(heading: str, shell: Shell) -> None:
    check(heading, provoke(heading, shell))


def test_every_error_of_the_page_is_provoked_somewhere() -> None:
    tests = "".join(file.read_text(encoding="utf-8") for file in ELSEWHERE)
    elsewhere = set(re.findall(r'pattern_of\("(.+?)"\)', tests))
    assert sorted([*HERE, *elsewhere]) == sorted(messages())
    assert len(messages()) >= 20


def test_every_exit_code_is_on_the_page() -> None:
    from reliable_channel.cli.app import EXIT_CODES

    named = {
        int(code) for row in re.findall(r"^\| ([\d, ]+) \|", PAGE.read_text(), re.MULTILINE) for code in row.split(",")
    }
    assert named == set(EXIT_CODES)


def test_an_ordinary_read_error_is_no_full_disk(shell: Shell) -> None:
    """The sentence follows the error's number, not its text."""
    from reliable_channel.runtime.faults import as_fault

    assert "disk" not in str(as_fault(OSError(errno.EIO, "No space left on device", "x")))
