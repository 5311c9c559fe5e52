"""The page about a network is followed word by word, on running go-waku nodes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from reliable_channel.runtime.broker import free_port
from tests.support.doc_blocks import ROOT, blocks_of
from tests.support.waiting import WAIT_S
from tests.support.waku_process import PROGRAM

pytestmark = [
    pytest.mark.waku,
    pytest.mark.kafka,
    pytest.mark.e2e,
    pytest.mark.skipif(not PROGRAM, reason="no Waku node was built: make test-node"),
]
PAGE = ROOT / "docs" / "howto" / "network.md"
PORTS = ("60001", "60002", "8645", "8745")


def test_the_page_about_a_network_is_right_word_by_word(tmp_path: Path) -> None:
    blocks = blocks_of(PAGE)
    script = "\n".join(block.text for block in blocks if block.marker == "test")
    ports = {port: str(free_port()) for port in PORTS}
    script = re.sub("|".join(ports), lambda found: ports[found[0]], script)
    shown = "".join(block.text for block in blocks if block.language == "text")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "waku").symlink_to(PROGRAM)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "RELIABLE_CHANNEL__KAFKA__BROKER__PORT": str(free_port()),
        "RELIABLE_CHANNEL__SPARK__MASTER": "local[2]",
        "no_proxy": "*",
    }
    trap = "trap 'reliable-channel kafka stop >/dev/null 2>&1' EXIT\n"
    process = subprocess.Popen(
        ["bash", "-c", trap + script],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, errors = process.communicate(timeout=900)
    finally:  # ends what a failure leaves behind; the trap ends the broker, which has a session of its own
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        process.wait(WAIT_S)
    logs = {path.name: path.read_text(errors="replace")[-2_000:] for path in tmp_path.glob("*.log")}
    pattern = ".*".join(map(re.escape, shown.split("…")))
    assert re.fullmatch(pattern, said), (said, errors, logs)
    assert "Traceback" not in errors + "".join(logs.values())
