"""Summarises the figures in one or two sentences: how much is missing, in which channel most, and the most frequent
cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from typing import Any

from reliable_channel.analysis import text

MUCH_MORE = 1.5
"""How many times the loss of all others a channel must have to be named."""
FEWEST = 10
"""The minimum of settled messages for a channel to be named; below it, its share would be chance."""

LIKELIEST = 0.05
"""How likely one of all channels may have such a loss by chance: of ten thousand with few messages, some have."""


def conclusion(
    totals: Mapping[str, Any], channels: Sequence[Mapping[str, Any]], causes: Iterable[Mapping[str, Any]]
) -> str | None:
    """The sentences, or ``None`` where no message is settled.

    ``totals`` and each of ``channels`` have ``delivered`` and ``missing``, a channel its ``channel_id``; ``causes``
    have ``verdict``, ``cause`` and ``messages``. Names from the network are bounded and printable; pages still escape
    them."""
    missing, settled = totals["missing"], totals["missing"] + totals["delivered"]
    if not settled:
        return None
    if settled == 1:
        return "The only settled message was delivered." if not missing else "The only settled message is missing."
    if not missing:
        return f"All {settled:,} settled messages were delivered."
    sentences = [f"{text.percent(missing / settled)} of {settled:,} settled messages are missing."]
    if worst := _find_worst(channels, missing, settled):
        name, loss, others = worst
        sentences.append(f"The channel {name} misses {text.percent(loss)}, all others {text.percent(others)}.")
    of_missing = [row for row in causes if row["verdict"] == "missing"]
    if of_missing:
        most = max(of_missing, key=lambda row: row["messages"])
        cause = text.words(most["cause"]) if most["cause"] not in (None, "unexplained") else "cause unknown"
        sentences.append(f"{most['messages']:,} of the {missing:,}: {cause}.")
    return " ".join(sentences)


def _find_worst(channels: Sequence[Mapping[str, Any]], missing: int, settled: int) -> tuple[str, float, float] | None:
    """Name and loss of the channel whose loss is much larger than that of the others, and the loss of the others."""
    worst = None
    for row in channels:
        mine = row["missing"] + row["delivered"]
        if not row["missing"] or mine < FEWEST or mine == settled:
            continue
        loss, others = row["missing"] / mine, (missing - row["missing"]) / (settled - mine)
        if loss < MUCH_MORE * others or (worst is not None and loss <= worst[1]):
            continue
        if len(channels) * _limit_chance(mine, loss, others) <= LIKELIEST:
            worst = text.name(row["channel_id"], 40), loss, others
    return worst


def _limit_chance(messages: int, share: float, usual: float) -> float:
    """An upper limit (Chernoff's) of how likely at least this share of so many messages is missing, where a message is
    usually missing with the probability ``usual``, which is smaller."""
    if not usual:
        return 0.0
    divergence = share * log(share / usual) + (1 - share) * log((1 - share) / (1 - usual) if share < 1 else 1)
    return exp(-messages * divergence)
