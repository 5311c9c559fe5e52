"""Which files a Python worker of a local session imports PySpark from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark

from reliable_channel.config import load
from reliable_channel.runtime.spark import WORKER_PATH, local_conf

INSTALLED = Path(pyspark.__file__).parent
ASKED = "import json, sys, pyspark; print(json.dumps([pyspark.__file__, sys.path, [*sys.path_importer_cache]]))"


def spark_puts_first() -> list[str]:
    """The entries that Spark puts at the beginning of a worker's path."""
    return [
        str(place) for place in (*(INSTALLED / "python/lib").glob("*.zip"), *(INSTALLED / "jars").glob("spark-core*"))
    ]


def started(*places: str) -> tuple[str, list[str], list[str]]:
    """Where a new Python finds PySpark, its path, and where it has looked, with these places first on its path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
    run = subprocess.run([sys.executable, "-c", ASKED], env=environment, capture_output=True, check=True)
    found, path, looked = json.loads(run.stdout)
    return found, path, looked


def test_a_worker_imports_pyspark_from_where_it_is_installed() -> None:
    found, path, looked = started(*spark_puts_first(), str(WORKER_PATH))
    assert Path(found) == INSTALLED / "__init__.py"
    assert not {*spark_puts_first()} & {*path, *looked}


def test_without_it_a_worker_imports_the_source_in_the_zip_file() -> None:
    found, _, _ = started(*spark_puts_first())
    assert ".zip" in found, "Spark's zip file is no longer first: runtime/worker_path is not needed any more"


def test_other_entries_of_the_path_stay(tmp_path: Path) -> None:
    theirs = [str(tmp_path / "theirs.zip"), str(tmp_path / "pyspark" / "python" / "lib" / "pyspark.zip")]
    _, path, _ = started(*theirs, str(WORKER_PATH))
    assert [place for place in path if place in theirs] == theirs


def test_only_a_local_session_has_it() -> None:
    settings = load("local")
    elsewhere = settings.model_copy(update={"spark": settings.spark.model_copy(update={"master": "spark://host:7077"})})
    assert local_conf(settings)["spark.executorEnv.PYTHONPATH"] == str(WORKER_PATH)
    assert "spark.executorEnv.PYTHONPATH" not in local_conf(elsewhere)
