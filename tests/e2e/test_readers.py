"""The readers of docs/questions.md, each alone in a clean virtual environment, several times: a crash may be rare."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.doc_blocks import ROOT, blocks_of
from tests.support.venvs import make_venv

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

READERS = [
    block
    for block in blocks_of(ROOT / "docs" / "questions.md")
    if block.about.endswith("test_each_reader_reads_in_a_clean_environment")
]
INSTALLED = re.findall(r"`pip install ([a-z ]+)`", (ROOT / "docs" / "questions.md").read_text(encoding="utf-8"))
TIMES = 3


@pytest.mark.parametrize(("packages", "code"), [*zip(INSTALLED, [r.text for r in READERS], strict=True)], ids=INSTALLED)
def test_each_reader_reads_in_a_clean_environment(
    packages: str, code: str, sample_tables: Path, tmp_path: Path
) -> None:
    python = make_venv(tmp_path / "env", *packages.split()) / "python"
    (tmp_path / "build" / "demo").mkdir(parents=True)
    (tmp_path / "build" / "demo" / "tables").symlink_to(sample_tables)
    for _ in range(TIMES):
        done = subprocess.run(
            [python, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
