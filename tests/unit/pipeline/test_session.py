from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from reliable_channel.pipeline.session import own_workers


def test_what_another_query_copies_meanwhile_does_not_change() -> None:
    """Py4J copies the environment key by key, and lets other threads run at each."""
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(environment={"PYTHONHASHSEED": "0"}))
    before = iter(spark.sparkContext.environment)
    with own_workers(spark, "ack"):
        assert list(before) == ["PYTHONHASHSEED"]
        inside = iter(spark.sparkContext.environment)
        assert next(inside) == "PYTHONHASHSEED"
    assert len(list(inside)) == 1
    assert spark.sparkContext.environment == {"PYTHONHASHSEED": "0"}
