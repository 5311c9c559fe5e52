"""A real Spark standalone cluster on loopback: one master and workers, each a process of its own, from the pip package.

The daemons get a clean environment (no virtual environment, no ``PYTHONPATH``, no ``PYSPARK_PYTHON``), as machines of a
cluster would have it; what executors need must be shipped with the job. They end with this process, however it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark

from reliable_channel.runtime.broker import HOST, free_port
from reliable_channel.runtime.java import SHORT_LIVED, java
from tests.support.waiting import WAIT_S

SPARK_HOME = Path(pyspark.__file__).parent


@dataclass(frozen=True)
class SparkCluster:
    """``master``: ``spark://host:port``. ``home``: working directories of the workers, and what the daemons print."""

    master: str
    web: str
    home: Path

    def state(self) -> dict[str, Any]:
        """What the master tells: workers, running and completed applications."""
        with urllib.request.urlopen(f"{self.web}/json/", timeout=10) as answer:  # noqa: S310  our own, on loopback
            answered: dict[str, Any] = json.load(answer)
        return answered


@contextmanager
def spark_cluster(
    home: Path, workers: int = 2, environment: Callable[[str], Mapping[str, str]] = lambda _: {}
) -> Iterator[SparkCluster]:
    """The cluster for the length of the block: ``workers`` workers with one core and 1 GiB each, all registered.
    ``environment``: what executors have of the machine of ``worker-0``, ``worker-1``, …"""
    port, web = free_port(), free_port()
    cluster = SparkCluster(f"spark://{HOST}:{port}", f"http://{HOST}:{web}", home)
    home.mkdir(parents=True, exist_ok=True)
    with ExitStack() as daemons:
        master = ["--host", HOST, "--port", str(port), "--webui-port", str(web)]
        daemons.enter_context(_daemon(home, "master", "org.apache.spark.deploy.master.Master", *master))
        for name in (f"worker-{number}" for number in range(workers)):
            options = ["--host", HOST, "--webui-port", "0", "--cores", "1", "--memory", "1g"]
            options += ["--work-dir", str(home / name), cluster.master]
            worker = "org.apache.spark.deploy.worker.Worker"
            daemons.enter_context(_daemon(home, name, worker, *options, **environment(name)))
        _until(lambda: len(cluster.state()["workers"]) == workers, home)
        yield cluster


@contextmanager
def _daemon(home: Path, name: str, main_class: str, *arguments: str, **more: str) -> Iterator[None]:
    environment = {
        "PATH": f"{Path(java()).parent}:/usr/bin:/bin",
        "HOME": str(home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED,
        "SPARK_LOCAL_DIRS": str(home / "local"),
        "SPARK_WORKER_OPTS": "-Dspark.worker.cleanup.enabled=true",
    } | more
    command = ["env", "-i", *(f"{key}={value}" for key, value in environment.items())]
    command += [str(SPARK_HOME / "bin" / "spark-class"), main_class, *arguments]
    supervisor = [sys.executable, "-m", "reliable_channel.runtime.supervise", str(os.getpid()), *command]
    with (home / f"{name}.out").open("wb") as output:
        process = subprocess.Popen(supervisor, stdin=subprocess.PIPE, stdout=output, stderr=output)
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()  # the supervisor ends its child, and is waited for
        process.wait(WAIT_S)


def _until(ready: Any, home: Path) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except (OSError, ValueError):
            pass  # the master does not listen yet, or has no JSON page yet
        time.sleep(0.2)
    said = "\n".join(f"{file.name}: {file.read_text(errors='replace')[-2000:]}" for file in home.glob("*.out"))
    raise AssertionError(f"The cluster was not ready in {WAIT_S:.0f} s.\n{said}")


def processes_of(place: Path) -> list[str]:
    """Command lines of the running processes that name ``place``."""
    lines = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # no process, or it has ended
            continue
        if str(place) in line and entry.name != str(os.getpid()):
            lines.append(f"{entry.name} {line[:200]}")
    return lines
