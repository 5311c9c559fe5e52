"""The environment of other processes: settings as variables, or nothing of this process's Spark."""

from __future__ import annotations

import json
import os

from reliable_channel.config import Settings
from reliable_channel.config.fixed import drop_fixed


def environment(settings: Settings) -> dict[str, str]:
    """The same settings for another process."""
    prefix = "RELIABLE_CHANNEL__"
    shown = drop_fixed(settings.model_dump(mode="json", include={"kafka", "node", "store", "bridge"}))
    sections = {
        "KAFKA": {"bootstrap_servers": settings.kafka.bootstrap_servers, "topics": shown["kafka"]["topics"]},
        "PATHS": {"run_dir": settings.paths.run_dir},
        "NODE": shown["node"],
        "STORE": shown["store"],
        "BRIDGE": shown["bridge"],
    }
    return {**os.environ, **{prefix + name: json.dumps(value) for name, value in sections.items()}}


def plain_environment(*strip: str) -> dict[str, str]:
    """This process's environment without its Spark, its configuration and variables that begin with ``strip``. The
    options of short-lived JVMs stay."""
    stripped = ("PYSPARK", "SPARK_", "RELIABLE_", *strip)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(stripped)}
    options = os.environ.get("SPARK_SUBMIT_OPTS")
    return kept if options is None else kept | {"SPARK_SUBMIT_OPTS": options}
