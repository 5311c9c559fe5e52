"""The lock is complete, hashed, satisfies the project file, and names no registry."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from reliable_channel import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LOCKS = {
    "requirements.lock": [*PROJECT["project"]["dependencies"], *PROJECT["dependency-groups"]["dev"]],
    "requirements-runtime.lock": PROJECT["project"]["dependencies"],
    "requirements-build.lock": PROJECT["dependency-groups"]["build"],
}
WANTED = [(lock, Requirement(text)) for lock, texts in LOCKS.items() for text in texts]


def pins(lock: str) -> dict[str, set[Version]]:
    """Canonical name → pinned versions; several where they differ by platform or Python."""
    found: dict[str, set[Version]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9_.-]+)(?:\[[^]]*\])?==([^ \\]+)", read(lock), re.MULTILINE):
        found.setdefault(canonicalize_name(name), set()).add(Version(version))
    return found


def read(lock: str) -> str:
    return (ROOT / lock).read_text(encoding="utf-8")


@pytest.mark.parametrize(("lock", "wanted"), WANTED, ids=lambda value: str(value))
def test_every_dependency_is_locked_as_the_project_file_asks(lock: str, wanted: Requirement) -> None:
    versions = pins(lock).get(canonicalize_name(wanted.name), set())
    assert versions, f"{wanted.name} is not in {lock}: run make lock"
    assert all(wanted.specifier.contains(version, prereleases=True) for version in versions)


@pytest.mark.parametrize("lock", LOCKS)
def test_everything_is_hashed(lock: str) -> None:
    blocks = re.split(r"^(?=\S+==)", read(lock), flags=re.MULTILINE)[1:]
    assert len(blocks) >= len(pins(lock))
    assert all("--hash=sha256:" in block for block in blocks)


@pytest.mark.parametrize("lock", LOCKS)
def test_no_registry_is_named(lock: str) -> None:
    assert "://" not in read(lock)


def test_what_is_installed_to_run_it_is_a_part_of_what_it_is_developed_with() -> None:
    run, develop = pins("requirements-runtime.lock"), pins("requirements.lock")
    assert [name for name, versions in run.items() if versions - develop.get(name, set())] == []
    assert not {"pytest", "ruff", "mypy", "mkdocs-material"} & set(run)


def test_the_package_says_the_version_of_the_project_file() -> None:
    assert PROJECT["project"]["version"] == __version__
