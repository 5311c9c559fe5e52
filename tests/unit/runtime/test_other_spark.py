"""A machine where the environment is that of another installation of Spark."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from reliable_channel.config import load
from reliable_channel.runtime import spark as runtime

OTHERS = {
    "SPARK_HOME": "/opt/spark",
    "SPARK_CONF_DIR": "/etc/spark",
    "SPARK_LOCAL_DIRS": "/mnt/spark",
    "SPARK_LOCAL_IP": "10.0.0.7",
    "SPARK_REMOTE": "sc://10.0.0.7",
    "PYSPARK_PYTHON": "/usr/bin/python3",
    "PYSPARK_DRIVER_PYTHON": "jupyter",
    "PYSPARK_SUBMIT_ARGS": "--master yarn pyspark-shell",
}


class _Builder:
    def config(self, **_: Any) -> _Builder:
        return self

    def getOrCreate(self) -> None:  # noqa: N802  PySpark's name
        raise SystemExit  # before a JVM starts


def start(monkeypatch: pytest.MonkeyPatch, run_dir: Path, master: str) -> dict[str, str]:
    """What a session changes of the environment above before it starts the JVM."""
    for name in [name for name in os.environ if name.startswith(("SPARK_", "PYSPARK_"))]:
        monkeypatch.delenv(name)
    for name, value in {**OTHERS, "SPARK_SUBMIT_OPTS": "-Xint"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(SparkSession, "builder", _Builder())
    monkeypatch.setattr(runtime, "local_conf", lambda settings: {})
    with pytest.raises(SystemExit):
        runtime.open_session(load("local", paths={"run_dir": str(run_dir)}, spark={"master": master}))
    return {name: value for name, value in os.environ.items() if name.startswith(("SPARK_", "PYSPARK_"))}


def test_a_local_session_takes_nothing_of_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert start(monkeypatch, tmp_path, "local[2]") == {
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_SUBMIT_OPTS": "-Xint",
        "PYSPARK_PYTHON": sys.executable,
    }


def test_a_session_on_a_cluster_takes_all_but_its_programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = {"SPARK_HOME": str(Path(pyspark.__file__).parent), "SPARK_SUBMIT_OPTS": "-Xint"}
    assert start(monkeypatch, tmp_path, "spark://there:7077") == OTHERS | own


def test_plain_paths_are_local_where_hadoop_is_configured() -> None:
    settings = load("local", spark={"master": "local[2]"})
    assert runtime.local_conf(settings)["spark.hadoop.fs.defaultFS"] == "file:///"
