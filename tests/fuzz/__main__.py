"""``make fuzz SECONDS=… SEED=…``: fuzz every target for a while; exit 1 when an input broke a property."""

from __future__ import annotations

import argparse
import random
import sys

from tests.fuzz.search import search_all


def main() -> int:
    """Run the search and say how to repeat it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="the same seed tries the same inputs")
    options = parser.parse_args()
    number = random.randrange(2**32) if options.seed is None else options.seed
    print(f"Fuzzing for {options.seconds:.0f} s with seed {number}.")
    found = search_all(options.seconds, number)
    for path in found:
        print(
            f"FAILED: {path}: replay it with `.venv/bin/pytest tests/fuzz -k {path.stem}`, mend, and commit the file."
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
