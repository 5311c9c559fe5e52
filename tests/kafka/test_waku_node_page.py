"""The code of docs/waku-node.md, run on the real broker."""

from __future__ import annotations

import pytest

from reliable_channel.config import Settings
from tests.support.doc_blocks import ROOT, blocks_of

pytestmark = pytest.mark.kafka


def test_the_code_of_the_page_queues_and_says_so(
    broker: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [block for block in blocks_of(ROOT / "docs" / "waku-node.md") if block.language == "python"]
    monkeypatch.setenv("RELIABLE_CHANNEL__KAFKA__BOOTSTRAP_SERVERS", broker.kafka.servers)
    exec(compile(block.text, str(block), "exec"), {"__name__": "example"})  # noqa: S102  our own document
    assert capsys.readouterr().out.count("Queued(") == 1, "no bridge runs here"
