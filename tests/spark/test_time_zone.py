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
place = f"{sys.argv[1]}/table"
found = []
with spark_session(settings, "time zone") as spark:
    rows = spark.range(3).coalesce(1)
    rows.write.format("delta").save(place)
    zones = spark._jvm.java.util.TimeZone
    for name in ("python", "submitted"):
        if name == "submitted":  # spark-submit started the JVM: only the session's settings are ours
            zones.setDefault(zones.getTimeZone("Europe/Berlin"))
        spark.sparkContext.setJobGroup(name, "one append")
        rows.write.format("delta").mode("append").save(place)
        found.append((zones.getDefault().getID(), len(spark.sparkContext.statusTracker().getJobIdsForGroup(name))))
print(json.dumps(found))
"""


def test_a_commit_verifies_no_file_list_outside_utc(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMIT, str(tmp_path)],
        env={**os.environ, "TZ": "Europe/Berlin"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [["UTC", 1], ["Europe/Berlin", 1]]
