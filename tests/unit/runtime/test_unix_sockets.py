"""Where Python workers talk to the JVM over Unix sockets: only in the run's private directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reliable_channel.config import load
from reliable_channel.runtime import jars
from reliable_channel.runtime.spark import SOCKET_PATH, local_conf, takes_unix_sockets

ENABLED, JAVA = "spark.python.unix.domain.socket.enabled", "spark.driver.extraJavaOptions"
NAME = "/.8dbc4544-b90f-92d8-3d8d-f4db26c30c11.sock"


def conf(monkeypatch: pytest.MonkeyPatch, run_dir: str, **spark: Any) -> dict[str, str]:
    monkeypatch.setattr(jars, "paths", lambda what, cache_dir: [])
    return local_conf(load("local", paths={"run_dir": run_dir}, spark={"master": "local[2]", **spark}))


def test_sockets_are_in_the_private_directory_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = conf(monkeypatch, "/srv/run")
    assert found[ENABLED] == "true"
    assert found[JAVA].endswith(" -Djava.io.tmpdir=/srv/run/spark")
    assert found["spark.local.dir"] == "/srv/run/spark", "a directory that is private to its user"


@pytest.mark.parametrize("run_dir", ["/srv/my run", '/srv/"run"', "/srv/$HOME"])
def test_elsewhere_they_are_tcp(monkeypatch: pytest.MonkeyPatch, run_dir: str) -> None:
    found = conf(monkeypatch, run_dir)
    assert ENABLED not in found
    assert "java.io.tmpdir" not in found[JAVA]


@pytest.mark.parametrize("run_dir", [f"/srv/{'x' * SOCKET_PATH}", "/Users/run"])
def test_where_only_sockets_cannot_be_native_libraries_are(monkeypatch: pytest.MonkeyPatch, run_dir: str) -> None:
    """RocksDB's, which cannot be loaded from a /tmp that is mounted with noexec."""
    found = conf(monkeypatch, run_dir)
    assert ENABLED not in found
    assert found[JAVA].endswith(f" -Djava.io.tmpdir={run_dir}/spark")


def test_executors_of_a_cluster_have_directories_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ENABLED not in conf(monkeypatch, "/srv/run", master="spark://there:7077")


def test_with_java_options_of_the_user_they_are_tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs replace ours, and with these goes the directory."""
    assert ENABLED not in conf(monkeypatch, "/srv/run", conf={JAVA: "-Xss4m"})


@pytest.mark.parametrize("over", [0, 1])
def test_the_path_of_a_socket_is_at_most_what_every_system_takes(over: int) -> None:
    place = Path("/" + "x" * (SOCKET_PATH - len(NAME) - 1 + over))
    assert takes_unix_sockets(place) is (over == 0)
