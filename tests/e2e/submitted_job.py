"""A job for ``spark-submit`` that reports what it found: session settings, where the package came from, the tables.

Reads Kafka and writes Delta with the session of ``reliable_channel.runtime.spark``. Argument: where to write.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reliable_channel.config import load
from reliable_channel.runtime.spark import spark_session


def decode(batches: Iterator[Any]) -> Iterator[Any]:
    """Runs on an executor: imports the package there and says from where."""
    import reliable_channel
    from reliable_channel.core.wire.waku import message_hash  # noqa: F401 - the executor must be able to import it

    for batch in batches:
        yield batch.assign(origin=reliable_channel.__file__)


def main(target: Path) -> None:
    import reliable_channel

    settings = load()
    with spark_session(settings, "submitted") as spark:
        records = (
            spark.read.format("kafka")
            .options(**settings.kafka.spark_options())
            .option("subscribe", settings.kafka.topics.envelopes)
            .load()
        )
        rows = records.selectExpr("CAST(key AS STRING) AS key", "value").mapInPandas(
            decode, "key STRING, value BINARY, origin STRING"
        )
        rows.write.format("delta").save(str(target / "table"))
        found = {
            "version": spark.version,
            "application": spark.sparkContext.appName,
            "partitions": spark.conf.get("spark.sql.shuffle.partitions"),
            "zone": spark.conf.get("spark.sql.session.timeZone"),
            "driver": reliable_channel.__file__,
        }
    (target / "found.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
