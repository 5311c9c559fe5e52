"""Limits the work that one input causes, so that no traffic makes a segment expensive.

The unit is one byte hashed with Keccak-256, about 3 ns. All other work is counted at its measured cost.
"""

from __future__ import annotations

HASH = 1_000
"""One digest, in addition to its bytes."""

SEGMENT = 60
"""Selecting one segment of a choice and concatenating it."""

LEAST_LENGTHS = 512
"""The minimum number of lengths that a search for the true length tries per input, so that it always progresses."""


class Work:
    """The remaining work of one input or timer. The first attempt is always made; the message size bounds its cost."""

    __slots__ = ("attempts", "left", "spent")

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.spent = 0
        self.attempts = 0

    def begin(self, cost: int) -> bool:
        """Count an attempt of ``cost``; returns whether it may be made."""
        if self.attempts and cost > self.left:
            return False
        self.attempts += 1
        self.left -= cost
        self.spent += cost
        return True

    def spend(self, cost: int) -> None:
        """Count work that cannot be skipped."""
        self.left -= cost
        self.spent += cost

    def lengths(self) -> int:
        """The number of payload lengths that may be tried."""
        return max(self.left // HASH, LEAST_LENGTHS)
