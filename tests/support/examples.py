"""How many examples a property is tried with."""

from __future__ import annotations

from hypothesis import settings

USUAL = 100


def examples(full: int) -> int:
    """The number for a property that needs more or fewer than the usual hundred: ``full`` with the profile ``full``,
    and in proportion with the others (``tests/unit/conftest.py``)."""
    return max(4, full * settings.default.max_examples // USUAL)
