"""Names what the configuration does not set: constants of the code, which only tests and embedding programs change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_KEYS = {
    "alerts": "webhook_timeout_ms",
    "messaging": "attempt_timeout_ms",
    "participant": "process_task_min_elapse_ms",
    "rate_limit": "approaching_share",
    "sds": "wire_family tracking sync_after_content sync_with_repairs repair_response_groups retrieve_frequency_ms"
    " retrieve_backoff",
    "sds.filter_format": "error_rate",
    "segmentation": "codec",
    "spark": "arrow_batch_rows log_level",
    "store.audit": "after_ms within_ms",
}
FIXED = frozenset(f"{section}.{key}" for section, keys in _KEYS.items() for key in keys.split())
"""Section and key, without the numbers of list entries."""


def find_fixed(content: Any, path: str = "") -> Iterator[str]:
    """The keys of :data:`FIXED` that are in the content of a file or of the environment."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            inner = f"{path}.{key}".lstrip(".")
            if inner in FIXED:
                yield inner
            yield from find_fixed(value, inner)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from find_fixed(value, path)


def drop_fixed(content: Any, path: str = "") -> Any:
    """The values of a configuration without those that it does not set."""
    if isinstance(content, Mapping):
        names = {key: f"{path}.{key}".lstrip(".") for key in content}
        return {key: drop_fixed(content[key], name) for key, name in names.items() if name not in FIXED}
    return [drop_fixed(value, path) for value in content] if isinstance(content, list) else content
