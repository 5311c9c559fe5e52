"""A signal while Spark starts is kept until the JVM can be ended. Spark itself is replaced: no JVM starts here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from reliable_channel.config import load
from reliable_channel.runtime import spark as runtime
from reliable_channel.runtime.spark import spark_session


class Gateway:
    """What PySpark keeps of a JVM: here a process that ends at the end of its input."""

    def __init__(self) -> None:
        code = "import sys; sys.stdin.read()"
        self.proc = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE)

    def shutdown(self) -> None:
        return None


@pytest.mark.usefixtures("heed_hangups")
@pytest.mark.parametrize("to_all", [False, True], ids=["to Python", "to all"])
@pytest.mark.parametrize(
    ("number", "error"),
    [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit), (signal.SIGHUP, SystemExit)],
)
def test_a_signal_while_the_jvm_starts_ends_it(
    number: int, error: type[BaseException], to_all: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One to all processes, as of ``timeout``, is no fault of the JVM either."""
    gateway = Gateway()

    class Builder:
        def config(self, **_: Any) -> Builder:
            return self

        def getOrCreate(self) -> None:  # noqa: N802  PySpark's name
            monkeypatch.setattr(SparkContext, "_gateway", gateway)
            os.kill(os.getpid(), number)
            if to_all:
                gateway.proc.kill()
                raise PySparkRuntimeError("[JAVA_GATEWAY_EXITED] Java gateway process exited")

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkSession, "builder", Builder())
    monkeypatch.setattr(runtime, "local_conf", lambda settings: {})
    monkeypatch.setattr(runtime, "java", lambda: None)
    settings = load("local", paths={"run_dir": str(tmp_path)})
    with pytest.raises(error), spark_session(settings):
        pytest.fail("the session was opened")
    assert gateway.proc.poll() is not None
