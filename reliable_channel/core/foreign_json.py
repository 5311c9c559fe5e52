"""Reads JSON that somebody else wrote. It can write half of a surrogate pair, which no UTF-8 and so no table, database
or answer can hold; such a half becomes U+FFFD, so that one bad text spoils nothing that is read with it."""

from __future__ import annotations

import json
import re
from typing import Any

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")


def loads(text: bytes) -> Any:
    """The value. Raises ``ValueError`` or ``RecursionError`` for what is no JSON."""
    found = json.loads(text)
    if _HALF.search(text) is None:
        return found
    return json.loads(
        json.dumps(found, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    )
