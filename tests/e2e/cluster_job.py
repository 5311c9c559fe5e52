"""A job for ``spark-submit``: where do its executors' Python and packages come from? Argument: where to write it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reliable_channel.config import load
from reliable_channel.runtime.spark import spark_session


def found_here(_: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Runs on an executor."""
    import pandas

    import reliable_channel.pipeline.reassembly.stream

    time.sleep(0.3)  # so that no executor takes all tasks
    yield {
        "directory": str(Path.cwd()),
        "prefix": sys.prefix,
        "pandas": pandas.__file__,
        "package": reliable_channel.__file__,
        "path": sys.path,
    }


def main(target: Path) -> None:
    with spark_session(load(), "cluster") as spark:
        found = spark.sparkContext.parallelize(range(12), 12).mapPartitions(found_here).collect()
        driver = {"prefix": sys.prefix, "master": spark.sparkContext.master}
    target.write_text(json.dumps({"driver": driver, "executors": found}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
