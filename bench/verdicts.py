"""Measures whether the cost of a round of verdicts depends only on new messages, however many are kept.

Two sizes are compared in the same session, round by round. The first round of each judges everything; the rounds in
which Java compiles do not count."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from statistics import median

from bench.jobs.children import child
from bench.jobs.rounds import Round
from bench.jobs.stages import prepare
from bench.registry import SIZES, Result, bench

KEPT = (20_000, 200_000)
NEW = 200
WARM_UP, MEASURED = 1, 4
"""Rounds of each size after the first: not counted, and measured."""
PATIENCE_S = 300.0
FLAT = 1.5
"""Target for the ratio of a round over many kept messages to one over few."""
IN_GAP = 4.0
"""Target for the ratio of a round with an open gap, which reads columns of all messages, to one without."""


@bench
def verdicts() -> Iterator[Result]:
    """Compare rounds with few new messages over many kept ones and over few, and with an open gap and without."""
    few, many = (SIZES.scale_count(kept, 1_000) for kept in KEPT)
    with tempfile.TemporaryDirectory(prefix="bench-") as directory:
        prepare(directory)
        spec = {
            "run_dir": directory,
            "cores": 2,
            "kept": [few, many],
            "new": NEW,
            "rounds": SIZES.scale_count(WARM_UP + MEASURED, 1),
        }
        rounds: list[Round] = []
        with child("bench.jobs.rounds", spec) as process:
            for answer in process.answers():
                rounds.append(Round(**answer))
                sys.stderr.write(f"  {json.dumps(answer)}\n")
            process.finish(PATIENCE_S)
    in_gap = [one for one in rounds if one.gap]
    rounds = [one for one in rounds if not one.gap]
    for kept in (few, many):
        first = next(one for one in rounds if one.kept == kept)
        yield Result(f"verdicts, {kept:,} messages kept: a round over all of them", first.seconds, "s")
        yield Result(f"verdicts, {kept:,} messages kept: {NEW} new ones", _typical(rounds, kept, "seconds"), "s")
        yield Result(f"verdicts, {kept:,} messages kept: {NEW} new ones, CPU", _typical(rounds, kept, "cpu_s"), "s")
    for unit, what in (("seconds", ""), ("cpu_s", ", CPU")):
        ratio = _typical(rounds, many, unit) / _typical(rounds, few, unit)
        name = f"verdicts, {NEW} new: {many:,} kept / {few:,} kept{what}"
        yield Result(name, ratio, "ratio", FLAT, True, "a tenth of the messages")
    for kept in (few, many):
        name = f"verdicts, {NEW} new among {kept:,}: open gap / no gap, CPU"
        ratio = _typical(in_gap, kept, "cpu_s") / _typical(rounds, kept, "cpu_s")
        yield Result(name, ratio, "ratio", IN_GAP, True, "a round without a gap")


def _typical(rounds: list[Round], kept: int, what: str) -> float:
    """The typical figures of the measured rounds."""
    return float(median([getattr(one, what) for one in rounds if one.kept == kept][-MEASURED:]))
