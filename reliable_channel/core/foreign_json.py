"""Parses JSON from outside. Such JSON can contain half of a surrogate pair, which UTF-8, and therefore a table, a
database or a response, cannot represent. Each half becomes U+FFFD, so one bad text does not make the rest unusable."""

from __future__ import annotations

import json
import re
from typing import Any

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def loads(text: bytes) -> Any:
    """Parse JSON. Raises ``ValueError`` or ``RecursionError`` for anything else."""
    found = json.loads(text)
    if _HALF.search(text) is None:
        return found
    return json.loads(
        json.dumps(found, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
