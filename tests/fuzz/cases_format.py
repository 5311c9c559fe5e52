"""One input of a fuzz target, and its file: a list of steps as JSON, so that a failure can be read and kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st

CASES = Path(__file__).parent / "cases"


class Step(NamedTuple):
    """One thing that happens: ``after_ms`` after the step before it; ``data`` is what arrives."""

    kind: str
    after_ms: int
    data: bytes


@dataclass(frozen=True)
class Target:
    """Something to fuzz. ``check`` raises for an input that breaks a property."""

    name: str
    inputs: st.SearchStrategy[list[Step]]
    check: Callable[[list[Step]], None]


def save(target: str, steps: list[Step], place: Path = CASES) -> Path:
    """Write a failing input; the name follows from the content. A test replays every file in ``cases``."""
    text = json.dumps([[step.kind, step.after_ms, step.data.hex()] for step in steps], indent=1)
    path = place / f"{target}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"
    place.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")
    return path


def load(path: Path) -> list[Step]:
    """The input in a file that :func:`save` wrote."""
    return [Step(kind, after_ms, bytes.fromhex(data)) for kind, after_ms, data in json.loads(path.read_text())]


def kept() -> Iterator[tuple[str, Path]]:
    """Every kept case and the name of its target."""
    for path in sorted(CASES.glob("*.json")):
        yield path.stem.rsplit("-", 1)[0], path
