"""The programs of ``docs/examples`` run as they are, in the directory of a demo's tables."""

from __future__ import annotations

import ast
import runpy
from importlib import import_module
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PRINTED = {
    "send_and_receive.py": ["bob received: Hello Bob", "alice knows that it was delivered"],
    "lossy_network.py": ["bob received 300000 bytes"],
    "decode.py": ["content by alice", "segment 2 of 2 with", "no Waku message: malformed_envelope"],
    "table_columns.py": ["verdict", "TIMESTAMP"],
    "missing_messages.py": ["messages: segment_missing"],
    "delivered_messages.py": ["channel_id", "talk"],
}


def test_every_example_is_run_and_listed() -> None:
    page = (EXAMPLES / "index.md").read_text(encoding="utf-8")
    names = {file.name for file in EXAMPLES.glob("*.py")}
    assert names == set(PRINTED)
    assert [name for name in names if f"]({name})" not in page] == []


@pytest.mark.parametrize("name", PRINTED)
def test_a_strict_type_checker_finds_what_the_example_imports(name: str) -> None:
    # the wheel has py.typed: without __all__, mypy --strict refuses a name that a package imports from its modules
    tree = ast.parse((EXAMPLES / name).read_text(encoding="utf-8"))
    imported = [
        (statement.module, alias.name)
        for statement in ast.walk(tree)
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("reliable_channel")
        for alias in statement.names
    ]
    assert imported
    packages = {module for module, _ in imported if module and hasattr(import_module(module), "__path__")}
    assert [
        f"{module}.{name}"
        for module, name in imported
        if module in packages and name not in import_module(module).__all__
    ] == []


@pytest.mark.parametrize("name", PRINTED)
def test_the_example_prints_what_it_shows(
    name: str,
    sample_tables: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "build" / "demo").mkdir(parents=True)
    (tmp_path / "build" / "demo" / "tables").symlink_to(sample_tables)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    shown = capsys.readouterr().out
    assert [text for text in PRINTED[name] if text not in shown] == []
