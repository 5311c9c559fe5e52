"""The JVM's time zone: a commit of Delta's own writer costs the same on a machine outside UTC."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

COMMIT = """
import json, sys
from reliable_channel.config import load
from reliable_channel.runtime.spark import spark_session

settings = load("local", paths={"run_dir": sys.argv[1]}, spark={"master": "local[2]"})
with spark_session(settings, "time zone") as spark:
    if sys.argv[2] == "submitted":  # spark-submit started the JVM: only the session's settings are ours
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark._jvm.java.util.TimeZone.setDefault(spark._jvm.java.util.TimeZone.getTimeZone("Europe/Berlin"))
    zone = spark._jvm.java.util.TimeZone.getDefault().getID()
    rows = spark.range(3).coalesce(1)
    place = f"{sys.argv[1]}/table"
    rows.write.format("delta").save(place)
    spark.sparkContext.setJobGroup("commit", "one append")
    rows.write.format("delta").mode("append").save(place)
    jobs = len(spark.sparkContext.statusTracker().getJobIdsForGroup("commit"))
print(json.dumps({"jobs": jobs, "zone": zone}))
"""


@pytest.mark.parametrize("started_by", ["python", "submitted"])
def test_a_commit_verifies_no_file_list_outside_utc(started_by: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMIT, str(tmp_path), started_by],
        env={**os.environ, "TZ": "Europe/Berlin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["zone"] == ("UTC" if started_by == "python" else "Europe/Berlin")
    assert found["jobs"] == 1
