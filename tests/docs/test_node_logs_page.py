"""The commands of docs/howto/node-logs.md work and print what the page shows, one after the other in one shell."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from tests.support.doc_blocks import ROOT, blocks_of

PAGE = ROOT / "docs" / "howto" / "node-logs.md"


def test_the_page_works_word_by_word(tmp_path: Path) -> None:
    found = blocks_of(PAGE)
    followed = [(a, b) for a, b in pairwise(found) if a.marker == "test" and b.language == "text"]
    assert len(followed) == 3
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for block, shown in followed:
        done = subprocess.run(
            ["bash", "-ec", block.text], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert [line.rstrip() for line in done.stdout.splitlines()] == shown.text.splitlines()
