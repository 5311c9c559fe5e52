"""Parses JSON from outside. Such JSON can contain half of a surrogate pair, which UTF-8, and therefore a table, a
database or a response, cannot represent. Each half becomes U+FFFD, so one bad text does not make the rest unusable.

The number of values is bounded before anything is parsed: 32 MiB of ``[0,0,…`` cost 600 MB and seconds."""

from __future__ import annotations

import json
import re
from typing import Any

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")

_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
"""A text, also one without an end, so that no search starts again inside it: linear whatever it holds."""

MAX_VALUES = 200_000
"""More than a full page of a store, or any record of the pipeline, has."""


def has_more_values(text: bytes, most: int) -> bool:
    """Whether JSON has more than about ``most`` values."""
    # Commas within texts are no values: a stranger's topic of commas must not cost the envelopes beside it.
    return text.count(b",") > most and _TEXT.sub(b"", text).count(b",") > most


def loads(text: bytes) -> Any:
    """Parse JSON. Raises ``ValueError`` or ``RecursionError`` for anything else, and for more than about
    :data:`MAX_VALUES` values."""
    if has_more_values(text, MAX_VALUES):
        raise ValueError(f"more than {MAX_VALUES} values")
    value = json.loads(text)
    if _HALF.search(text) is None:
        return value
    return json.loads(
        json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
