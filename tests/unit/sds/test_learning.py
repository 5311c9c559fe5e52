"""With a causal history of two and loss, every participant learns of every message while messages go on."""

from __future__ import annotations

import pytest

from bench.acknowledgements import NOW, conversation


@pytest.mark.parametrize(("seed", "loss", "messages"), [(1, 0.2, 250), (2, 0.4, 80), (3, 0.4, 80)])
def test_in_a_lossy_conversation_nothing_is_never_learnt_of(seed: int, loss: float, messages: int) -> None:
    assert NOW.causal_history_size == 2
    assert conversation(NOW, seed, loss, messages)[1] == 0
