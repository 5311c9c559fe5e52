"""Settings of a session that do not depend on what a site sets: what tasks read, and whether the files of state are
copied to the checkpoint once, or once a minute."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyspark

from reliable_channel.config import load
from reliable_channel.runtime.spark import CHECK_STALE_FILES, REQUIRED, local_conf, session_conf

CLASS = "org/apache/spark/sql/execution/streaming/state/RocksDBConf$.class"


def test_only_a_session_with_one_executor_trusts_the_files_that_it_has_uploaded(tmp_path: Path) -> None:
    here = load("local", paths={"run_dir": str(tmp_path)})
    cluster = load("local", paths={"run_dir": str(tmp_path)}, spark={"master": "spark://127.0.0.1:7077"})
    assert local_conf(here)[CHECK_STALE_FILES] == "false"
    assert CHECK_STALE_FILES not in local_conf(cluster)
    several = load("local", paths={"run_dir": str(tmp_path)}, spark={"master": "local-cluster[2,1,1024]"})
    assert local_conf(several)[CHECK_STALE_FILES] == "true"


def test_no_site_changes_the_form_of_what_tasks_read() -> None:
    conf = {**dict.fromkeys(REQUIRED, "other"), "spark.sql.ansi.enabled": "false"}
    merged = session_conf(load("local", spark={"conf": conf}))
    assert merged.items() >= REQUIRED.items()
    assert merged["spark.sql.streaming.stateStore.encodingFormat"] == "unsaferow"  # reassembly has no other
    assert merged["spark.sql.timestampType"] == "TIMESTAMP_LTZ"  # verdicts compare times with a zone
    assert merged["spark.sql.ansi.enabled"] == "false"


def test_the_installed_spark_has_the_option() -> None:
    """Spark takes any option without a word, so a new name of this one would go unnoticed."""
    [jar] = (Path(pyspark.__file__).parent / "jars").glob("spark-sql_2*.jar")
    with zipfile.ZipFile(jar) as classes:
        assert CHECK_STALE_FILES.rpartition(".")[2].encode() in classes.read(CLASS)
