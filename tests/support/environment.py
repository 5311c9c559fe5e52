"""Settings as environment variables, for other processes."""

from __future__ import annotations

import json
import os

from reliable_channel.config import Settings


def environment(settings: Settings) -> dict[str, str]:
    """The same settings for another process."""
    prefix = "RELIABLE_CHANNEL__"
    sections = {
        "KAFKA": {"bootstrap_servers": settings.kafka.bootstrap_servers, "topics": settings.kafka.topics.model_dump()},
        "PATHS": {"run_dir": settings.paths.run_dir},
        "NODE": settings.node.model_dump(mode="json"),
        "STORE": settings.store.model_dump(mode="json"),
        "BRIDGE": settings.bridge.model_dump(mode="json"),
    }
    return {**os.environ, **{prefix + name: json.dumps(value) for name, value in sections.items()}}
