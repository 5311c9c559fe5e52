"""Summarises the figures in one or two sentences: how much is missing, in which channel most, and the most frequent
cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from reliable_channel.analysis import text

MUCH_MORE = 1.5
"""How many times the loss of all others a channel must have to be named."""
FEWEST = 10
"""The minimum of settled messages for a channel to be named; below it, its share would be chance."""


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
    enough = [row for row in channels if row["missing"] and row["missing"] + row["delivered"] >= FEWEST]
    worst = max(enough, key=lambda row: row["missing"] / (row["missing"] + row["delivered"]), default=None)
    if worst is None or settled == (mine := worst["missing"] + worst["delivered"]):
        return None
    loss, others = worst["missing"] / mine, (missing - worst["missing"]) / (settled - mine)
    return (text.name(worst["channel_id"], 40), loss, others) if loss >= MUCH_MORE * others else None
