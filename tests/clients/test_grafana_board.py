"""The board is what Grafana's own schema calls one: every property is known there and has a value that it takes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BOARD = HERE.parents[1] / "conf" / "grafana-dashboard.json"
NODE = shutil.which("node")
COMPILER = HERE / "node_modules" / "typescript" / "bin" / "tsc"
CHECK = """
import type { Dashboard } from '@grafana/schema';
// JSON has the texts of enumerations of texts.
type Json<T> = T extends string ? T | `${T}` : T extends (infer U)[] ? Json<U>[]
  : T extends object ? { [K in keyof T]: Json<T[K]> } : T;
export const board: Json<Dashboard> = """

pytestmark = [
    pytest.mark.node,
    pytest.mark.skipif(not COMPILER.exists(), reason="Grafana's schema is not installed: make test-e2e installs it"),
]


def faults(board: str, place: Path) -> str:
    (place / "node_modules").symlink_to(HERE / "node_modules")
    (place / "board.ts").write_text(f"{CHECK}{board};\n", encoding="utf-8")
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext"]
    assert NODE
    done = subprocess.run(
        [NODE, COMPILER, *options, "board.ts"], cwd=place, capture_output=True, text=True, timeout=300, check=False
    )
    return done.stdout + done.stderr


def test_the_board_fits_the_schema_of_grafana(tmp_path: Path) -> None:
    assert faults(BOARD.read_text(encoding="utf-8"), tmp_path) == ""


def test_what_does_not_fit_is_found(tmp_path: Path) -> None:
    wrong = BOARD.read_text(encoding="utf-8").replace('"mode": "absolute"', '"mode": "absolut"', 1)
    assert "'\"absolut\"' is not assignable" in faults(wrong, tmp_path)
