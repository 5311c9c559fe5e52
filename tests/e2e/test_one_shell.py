"""A reader's afternoon: the first pages and the how-tos, word by word, one after the other in one shell.

On two busy cores (load 7) it took four minutes for the demo and seven for the rest: Spark is started six times."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.support.doc_blocks import ROOT, Block, blocks_of

DOCS = ROOT / "docs"
PAGES = (
    "start.md", "tutorial.md", "howto/kafka.md", "howto/keys.md", "howto/what-if.md", "howto/backfill.md",
    "howto/requeue.md", "howto/notify.md", "howto/upgrade.md", "simulation.md",
)  # fmt: skip
"""Pages with commands that this machine can follow, in the order of the site."""
ELSEWHERE = {
    "index.md": "no commands",
    "concepts.md": "no commands",
    "demo.md": "no commands of its own",
    "glossary.md": "no commands",
    "examples/index.md": "tests/docs/test_examples.py runs the programs",
    "howto/erase.md": "tests/spark/test_erase_page.py runs it",
    "howto/deploy.md": "tests/unit/test_deploy.py checks its files; they need containers, systemd or a cluster",
    "howto/logos-delivery.md": "no commands before a message of such a peer is in quarantine",
    "howto/node-logs.md": "tests/docs/test_node_logs_page.py runs it in one shell",
    "howto/network.md": "tests/interop/test_network_page.py follows it on two Waku nodes",
    "scale-out.md": "tests/e2e/test_spark_cluster.py runs it on a cluster",
    "howto/http-messaging.md": "tests/docs/test_http_pages.py runs it in one shell against a server",
    "howto/http-store.md": "tests/docs/test_http_pages.py runs it in one shell against a server",
    "howto/http-pages.md": "tests/docs/test_http_pages.py runs it in one shell against a server",
    "howto/rln.md": "no commands",
    "evidence-bundle.md": "tests/unit/report/test_evidence_bundle.py runs it",
    "howto/install.md": "tests/e2e/test_installed.py runs it in a clean environment",
    "waku-node.md": "tests/kafka/test_waku_node_page.py runs its code",
}
HERE = "tests/e2e/test_one_shell.py"
STAYS = re.compile(r"^(reliable-channel (?:bridge|dashboard)\b[^#\n]*?)\s*(?:#.*)?$", re.MULTILINE)
"""Commands that run until somebody ends them: the reader opens another terminal for the rest."""


def followed() -> Iterator[tuple[Block, str | None]]:
    """The blocks that are run here, each with what the page says it prints."""
    for page in PAGES:
        found = blocks_of(DOCS / page)
        for block, after in zip(found, [*found[1:], None], strict=True):
            if block.marker == "run" or block.about.startswith(HERE):
                shown = after.text if after is not None and after.language == "text" and not after.marker else None
                yield block, shown


def nav() -> list[str]:
    text = (ROOT / "conf" / "mkdocs.yml").read_text(encoding="utf-8")
    parts = yaml.safe_load(text[text.index("\nnav:") :])["nav"]
    pages = [page for part in parts for name, inner in part.items() if name in {"Start", "How to"} for page in inner]
    return [page if isinstance(page, str) else next(iter(page.values())) for page in pages]


def test_every_page_for_beginners_is_followed_or_says_where() -> None:
    assert [page for page in nav() if page not in ELSEWHERE] == list(PAGES)
    assert {block.page.removeprefix("docs/") for block, _ in followed()} == set(PAGES)
    for where in ELSEWHERE.values():
        assert where.startswith("no ") or (ROOT / where.split()[0]).is_file()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The clone without what was made in it."""
    place = tmp_path / "clone"
    place.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in {"build", "run", ".git", "dist"}:
            (place / entry.name).symlink_to(entry)
    return place


def free_port() -> int:
    with closing(socket.socket()) as tried:
        tried.bind(("127.0.0.1", 0))
        return int(tried.getsockname()[1])


def script(place: Path) -> str:
    """All blocks as one script, which says before each which one it is."""
    lines = ["set -eE", "jobs_left() { kill $(jobs -p) 2>/dev/null; wait; }", "trap jobs_left EXIT"]
    for number, (block, _) in enumerate(followed()):
        text = block.text.replace("/srv/", f"{place.parent}/srv/")
        if block.language == "python":
            text = f"python - <<'END OF THE CODE'\n{text}\nEND OF THE CODE\n"
        lines += [f"echo '@@ {number} {block}'", STAYS.sub(r"\1 > stays.log 2>&1 &", text)]
    return "\n".join([*lines, "echo '@@ done'"])


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.e2e
def test_the_pages_work_word_by_word_in_one_shell(checkout: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RELIABLE_CHANNEL__")} | {
        "RELIABLE_CHANNEL__KAFKA__BROKER__PORT": str(free_port()),  # the machine may have a Kafka at 9092
        "RELIABLE_CHANNEL__DASHBOARD__PORT": str(free_port()),
        "RELIABLE_CHANNEL__SPARK__MASTER": "local[2]",
        "RELIABLE_CHANNEL__SPARK__SHUFFLE_PARTITIONS": "1",
    }
    pages = checkout.parent / "pages.sh"
    pages.write_text(script(checkout), encoding="utf-8")
    try:
        done = subprocess.run(
            ["bash", str(pages)], cwd=checkout, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=1_800, check=False,
        )  # fmt: skip
    finally:
        subprocess.run(
            [ROOT / ".venv" / "bin" / "reliable-channel", "kafka", "stop"],
            cwd=checkout, env=environment, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
    printed = dict(re.findall(r"^@@ (\d+) [^\n]*\n(.*?)(?=^@@ )", done.stdout, re.MULTILINE | re.DOTALL))
    assert "@@ done" in done.stdout, f"{done.stdout[-2_000:]}\n{done.stderr[-4_000:]}"
    for number, (block, shown) in enumerate(followed()):
        if shown is not None:
            pattern = re.escape(shown.rstrip()).replace("…", ".+")
            assert re.fullmatch(pattern, printed[str(number)].rstrip()), f"{block} prints\n{printed[str(number)]}"
