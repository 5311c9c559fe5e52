"""Search for an input that breaks a target, with hypothesis; what it finds is shrunk and written to a file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from tests.fuzz.cases_format import CASES, Step, Target, save
from tests.fuzz.targets import TARGETS, run

KEPT = Path("build/fuzz")
"""Where hypothesis keeps inputs that failed or were of interest, for the next search."""
EXAMPLES_PER_ROUND = 100
SHRINK_S = 20.0
"""How long a failing input is made smaller."""


class _Enough(BaseException):
    """Ends a search; hypothesis lets it pass, unlike an ``Exception``."""


def search(target: Target, number: int, examples: int, place: Path = CASES, keep: bool = False) -> Path | None:
    """Try ``examples`` inputs that follow from the seed ``number``. Returns the file of the smallest that fails, or
    ``None``."""
    failed: list[tuple[list[Step], Exception]] = []
    first_failure = 0.0

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=DirectoryBasedExampleDatabase(KEPT / target.name) if keep else None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
        print_blob=False,
        report_multiple_bugs=False,
    )
    @given(target.inputs)
    def attempt(steps: list[Step]) -> None:
        nonlocal first_failure
        if first_failure and time.monotonic() - first_failure > SHRINK_S:
            raise _Enough
        try:
            run(target, steps)
        except Exception as error:
            first_failure = first_failure or time.monotonic()
            failed.append((steps, error))
            raise

    try:
        attempt()
    except (Exception, _Enough):
        if not failed:
            raise
        steps, error = min(failed, key=lambda failure: sum(10 + len(step.data) for step in failure[0]))
        path = save(target.name, steps, place)
        print(f"{target.name}: {type(error).__name__}: {str(error)[:300]}\n  kept as {path}")
        return path
    return None


def search_all(seconds: float, number: int, say: Callable[[str], None] = print) -> list[Path]:
    """Search all targets in turn for ``seconds``; the files of what failed. A target that failed is left alone."""
    until = time.monotonic() + seconds
    tried, found = dict.fromkeys(TARGETS, 0), []
    left = list(TARGETS.values())
    turn = 0
    while left and (time.monotonic() < until or not turn):
        for target in list(left):
            path = search(target, number + turn, EXAMPLES_PER_ROUND, keep=True)
            tried[target.name] += EXAMPLES_PER_ROUND
            if path is not None:
                found.append(path)
                left.remove(target)
        turn += 1
    say(", ".join(f"{name} {count}" for name, count in tried.items()) + " inputs")
    return found
