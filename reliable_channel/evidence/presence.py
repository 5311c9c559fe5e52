"""Makes the rows of ``store_presence``: which node had what, when it was asked."""

from __future__ import annotations

import time
from typing import Any

from reliable_channel.lake.tables.evidence import UNPROVEN
from reliable_channel.transport.store.client import NodeAnswer

ANOTHER_MESSAGE = "another message"
"""The ``detail`` of an answer with an envelope that does not contain the requested message."""


def make_row(
    node: str, message_hash: bytes | None, outcome: str, purpose: str, detail: str | None, **more: Any
) -> dict[str, Any]:
    """Make one row; ``more``: further columns."""
    return {
        "node": node,
        "message_hash": message_hash,
        "outcome": outcome,
        "purpose": purpose,
        "detail": detail,
        "asked_at": time.time_ns() // 1000,
        **more,
    }


def make_row_of_hash(
    answer: NodeAnswer, message_hash: bytes, purpose: str, holds: bool | None = True, **more: Any
) -> dict[str, Any]:
    """Build the row for the presence of one hash at a node. ``holds``: whether its envelope contains the requested
    message. Another message, or an undecidable one, proves nothing about the requested one."""
    outcome = {True: "present", False: "absent", None: "error"}[answer.has(message_hash)]
    detail = answer.error.fault.value if answer.error is not None else None
    if holds is False:
        outcome, detail = "error", detail or ANOTHER_MESSAGE
    elif holds is None and outcome == "present":
        detail = UNPROVEN
    return make_row(answer.node, message_hash, outcome, purpose, detail, **more)
