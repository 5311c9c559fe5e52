"""Runs benches at a small scale, to see that they run: their figures mean nothing then."""

from __future__ import annotations

import json
import math
import pkgutil
import shutil
from pathlib import Path

import bench
from bench.__main__ import FRAME, main

ALL = frozenset(m.name for m in pkgutil.iter_modules(bench.__path__) if not m.ispkg and m.name not in FRAME)
QUICK = frozenset(("acknowledgements", "codecs", "lookups", "many_channels", "node_logs", "sds", "segmentation"))
"""The benches that start no process."""
SHORTER = {
    "pipeline": ("--workload", "pairs"),
    "channels": ("--workload", "long", "--workload", "held"),
}
"""Of workloads that differ only in their sizes or traffic one, and those that have code of their own."""


def check_small(name: str, place: Path) -> None:
    """Run a bench at a hundredth of its size. Its results must be written, and complete."""
    assert main(["--only", name, "--scale", "0.01", "--output", str(place), *SHORTER.get(name, ())]) == 0
    if name == "js_waku" and shutil.which("npm") is None:
        return
    results = json.loads((place / f"{name}.json").read_text(encoding="utf-8"))
    assert results, f"{name} has no results"
    for result in results:
        assert result["name"], result
        assert math.isfinite(result["value"]), result
        assert (result["target"] is None) == (result["met"] is None), result
        assert result["target"] is None or result["against"], f"{result} is compared with nothing"
