"""The table in ``docs/messaging-conformance.md`` names tests that exist, and reasons where it names none."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
DOCUMENT = (ROOT / "docs" / "messaging-conformance.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in re.split(r" \|(?: |$)", line.strip().removeprefix("|"))]
    for line in DOCUMENT.splitlines()
    if re.match(r"\| \d+ \|", line)
]
KEEPERS = {"yes", "bridge", "node", "refused", "none", "–"}
"""Who keeps a rule with a transport."""
GENERATIONS = {"yes", "core", "differs", "no", "–"}
"""How the text of a generation stands to a rule."""
LEVELS = {"MUST", "MUST NOT", "SHOULD", "SHOULD not", "MAY", "RECOMMENDED", "IDL", "REST"}


@cache
def functions(file: Path) -> set[str]:
    """The test functions of a file."""
    return {node.name for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_every_row_names_existing_tests_or_a_reason(row: list[str]) -> None:
    number, level, rule, first, lip_168, waku_rest, kafka, shown_by, *remarks = row
    assert first in {"yes", "–"} and lip_168 in GENERATIONS
    assert lip_168 != "no" or remarks[0], f"row {number} gives no reason for what is not kept"
    assert {waku_rest, kafka} <= KEEPERS
    assert level in LEVELS
    assert rule
    named = re.findall(r"`([^`]+\.py)::([^`]+)`", shown_by)
    for file, test in named:
        path = ROOT / file if "/" in file else HERE / file
        assert test in functions(path), f"row {number}: {file}::{test} does not exist"
    assert named or (remarks and remarks[0].strip(" |")), f"row {number} names neither a test nor a reason"


@pytest.mark.parametrize("row", [row for row in ROWS if row[5] != row[6]], ids=lambda row: row[0])
def test_what_differs_over_kafka_is_tested_over_kafka(row: list[str]) -> None:
    """A setting that is refused, an order of stores that is another, the bridge's own protocols."""
    assert re.search(r"tests/kafka/|test_over_kafka_", row[7]), row


def test_the_rows_are_numbered_without_gaps() -> None:
    assert [int(row[0]) for row in ROWS] == list(range(1, len(ROWS) + 1))


def test_the_table_is_as_long_as_the_document_has_rules() -> None:
    """The first one uses these words in 125 lines, its paragraph on terminology aside."""
    assert sum(row[3] == "yes" for row in ROWS) >= 125


def test_the_example_of_the_guide_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs" / "messaging.md").read_text(encoding="utf-8")
    example = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(example, "messaging.md", "exec"), names)  # noqa: S102
    assert (tmp_path / "messages.sqlite").exists()
    assert len(str(names["request_id"])) == 36


def test_the_guide_names_every_path_that_is_served() -> None:
    from reliable_channel.channel.config import ReliableChannelConfig
    from reliable_channel.messaging.rest.app import create_app
    from tests.support.messaging_world import World

    world = World()
    guide = (ROOT / "docs" / "messaging.md").read_text(encoding="utf-8")
    document = create_app(world.node, channels=lambda _: ReliableChannelConfig(), run_node=False).openapi()
    world.node.close()
    served = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    missing = [f"{method} {path}" for method, path in served if f"{method} {path}" not in guide]
    assert missing == []
