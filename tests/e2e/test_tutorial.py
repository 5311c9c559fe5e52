"""The tutorial does what it says: its code is run over the real broker, its output compared with what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reliable_channel.config import Settings
from reliable_channel.runtime.broker import running_broker
from reliable_channel.runtime.build import make_bridge
from reliable_channel.runtime.topics import ensure_evidence_topic

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", TUTORIAL, re.DOTALL)


@pytest.fixture(scope="module")
def at_step_two(broker: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Step 1 done, on a broker of its own that only has this chat; the environment that names it."""
    run = tmp_path_factory.mktemp("tutorial")
    with running_broker(broker.with_run_dir(run)) as own:
        from reliable_channel.runtime.topics import ensure_topics

        ensure_topics(own.kafka)
        ensure_evidence_topic(own)
        loop = make_bridge(own, loop=True)
        loop.start()
        yield {
            **os.environ,
            "RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS": own.kafka.servers,
            "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(run),
            "RELIABLE_CHANNEL__SPARK__MASTER": "local[2]",
            "RELIABLE_CHANNEL__SPARK__SHUFFLE_PARTITIONS": "1",
        }
        loop.stop()


def run(code: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *code], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=1_800, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def as_pattern(shown: str) -> str:
    return re.escape(shown).replace("…", ".+")


def test_the_chat_has_thirty_lines() -> None:
    chat = blocks("python")[0]
    assert len([line for line in chat.splitlines() if line.strip()]) <= 30


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.e2e
def test_the_chat_and_the_tables_print_what_the_tutorial_shows(at_step_two: dict[str, str]) -> None:
    chat, query = blocks("python")
    shown_chat, shown_tables = blocks("text")
    assert re.fullmatch(as_pattern(shown_chat), run(["-c", chat], at_step_two))
    run(["-m", "reliable_channel.cli", "run", "--once"], at_step_two)
    assert run(["-c", query], at_step_two) == shown_tables
