"""The bytes that may wait for room."""

from __future__ import annotations

import pytest

from reliable_channel.transport.base import SendBufferFull
from reliable_channel.transport.byte_budget import ByteBudget


def test_a_full_budget_is_back_pressure() -> None:
    budget = ByteBudget(100)
    budget.take(90, 0)
    with pytest.raises(SendBufferFull):
        budget.take(20, 0.01)
    budget.give_back(90)
    budget.take(500, 0)  # larger than the limit: alone
    with pytest.raises(SendBufferFull):
        budget.take(1, 0)
