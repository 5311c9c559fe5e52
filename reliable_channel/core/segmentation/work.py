"""Counts the work that one input causes, and stops it at a limit, so that no traffic makes a segment expensive.

The unit is one byte through Keccak-256: about 3 ns. Everything else is counted at what it was measured to take.
"""

from __future__ import annotations

HASH = 1_000
"""One digest, beside its bytes."""

SEGMENT = 60
"""One segment of a choice: to pick it and to join it to the others."""

LEAST_LENGTHS = 512
"""How many lengths a search for the true length tries at least in one go, so that it always moves on."""


class Work:
    """The work that one input, or one timer, may still cause. The first attempt is always made: what it costs is
    bounded by the size of a message."""

    __slots__ = ("attempts", "left", "spent")

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.spent = 0
        self.attempts = 0

    def begin(self, cost: int) -> bool:
        """Count an attempt of ``cost`` and say whether it may be made."""
        if self.attempts and cost > self.left:
            return False
        self.attempts += 1
        self.left -= cost
        self.spent += cost
        return True

    def spend(self, cost: int) -> None:
        """Count work that has to be done."""
        self.left -= cost
        self.spent += cost

    def lengths(self) -> int:
        """How many lengths of a payload may be tried."""
        return max(self.left // HASH, LEAST_LENGTHS)
