"""Writes the table of results on a page of the documentation, between two marks.

A missed target has a line of its own; of the targets met against the same thing, the closest one has. The lines of
benches that were not run are kept.
"""

from __future__ import annotations

import datetime as dt
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from bench.registry import SIZES, Result

BEGIN, END = "<!-- results: written by `make bench` -->", "<!-- end of results -->"
_HEAD = """
| bench | figure | measured | target | met | against | commit, date |
|---|---|---|---|---|---|---|
"""


def renew(page: Path, results_by_bench: Mapping[str, Sequence[Result]]) -> None:
    """Replace the lines of these benches in the table of ``page``."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    table, _, after = rest.partition(END)
    made = _describe_run()
    fresh = {name: [*_lines(name, results, made)] for name, results in results_by_bench.items()}
    for line in table.strip().splitlines()[2:]:
        name = line.split("|")[1].strip()
        if name not in results_by_bench:
            fresh.setdefault(name, []).append(line)
    lines = "".join(f"{line}\n" for _, some in sorted(fresh.items()) for line in some)
    page.write_text(f"{before}{BEGIN}\n{_HEAD}{lines}\n{END}{after}", encoding="utf-8")


def _describe_run() -> str:
    """The commit, the date, and the scale of this run if it is not 1."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    scale = "" if SIZES.scale == 1 else f", `--scale {SIZES.scale:g}`"
    return f"{commit}, {dt.datetime.now(dt.UTC).date()}{scale}"


def _lines(bench: str, results: Sequence[Result], made: str) -> Iterator[str]:
    for against, some in groupby(sorted(results, key=lambda each: each.against), lambda each: each.against):
        with_target = [each for each in some if each.met is not None]
        missed = [each for each in with_target if not each.met]
        met = sorted((each for each in with_target if each.met), key=_closeness, reverse=True)
        for result in (*missed, *met[:1]):
            others = f" (and {len(met) - 1} more)" if result.met and len(met) > 1 else ""
            value, unit, target, _ = cells(result)
            answer = "yes" if result.met else "**no**"
            measured = value if unit == "ratio" else f"{value} {unit}".strip()
            yield f"| {bench} | {result.name}{others} | {measured} | {target} | {answer} | {against} | {made} |"


def _closeness(result: Result) -> float:
    """How close a result that meets its target is to missing it: 1 at the target."""
    value, target = result.value, result.target or 0.0
    if result.lower_is_better:
        return value / target if target else 0.0
    return target / value if value else 1.0


def cells(result: Result) -> tuple[str, str, str, str]:
    """A result as text: value, unit, target, and whether it is met."""
    if result.met is None:
        return _number(result.value), result.unit, "", ""
    target = ("≤ " if result.lower_is_better else "≥ ") + _number(result.target or 0.0)
    return _number(result.value), result.unit, target, "yes" if result.met else "MISSED"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
