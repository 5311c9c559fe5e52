"""``make setup`` in a checkout moved or copied with its environment, whose programs run the Python of the old place."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import setup


@pytest.mark.parametrize(("old", "cleared"), [("here", False), ("old", True)], ids=["the same place", "another place"])
def test_an_environment_is_kept_only_where_it_was_made(
    old: str, cleared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv, commands = tmp_path / "here", []

    def answer(command: list[str], title: str | None, total: int = 0) -> setup.Done:
        commands.append(command)
        return setup.Done(0, f"{sys.version_info[:3]} {sys.base_prefix}")

    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    (venv / "bin" / "pip").write_text(f"#!{tmp_path / old}/bin/python3\n", encoding="utf-8")
    for name, value in {"VENV": venv, "PYTHON": venv / "bin" / "python", "PIP": venv / "bin" / "pip"}.items():
        monkeypatch.setattr(setup, name, value)
    monkeypatch.setattr(setup, "run", answer)
    setup.create_environment()
    assert ("--clear" in commands[-1]) is cleared
