"""Imports point inward only. Read from the source: an import inside a function counts too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "reliable_channel"
ORDER = (
    "core", "transport", "channel", "messaging", "config", "runtime", "lake", "pipeline", "evidence", "analysis",
    "simulation", "cli",
)  # fmt: skip
CORE = {"core"}
PARTICIPANT = {"channel", "messaging", "transport"}
SIMULATION = {"simulation"}
CHECK, WHAT_IF = PACKAGE / "simulation" / "check", PACKAGE / "simulation" / "what_if"
LAKE = {"lake"}
PIPELINE = {"pipeline"}
CORE_LIBRARIES = {"numpy", "google", "Crypto", "reedsolo", "mmh3", "tiny_keccak"}
# Modules of the standard library by which a clock, randomness, I/O or the machine would enter the core.
FORBIDDEN_IN_CORE = {
    "asyncio", "calendar", "concurrent", "ctypes", "datetime", "glob", "http", "importlib", "io", "logging",
    "multiprocessing", "os", "pathlib", "platform", "random", "secrets", "select", "shutil", "signal", "socket",
    "sqlite3", "ssl", "subprocess", "sys", "tempfile", "threading", "time", "urllib", "uuid", "zoneinfo",
}  # fmt: skip
SPARK = {"pyspark", "delta"}
TOP_LEVEL = {
    ".ci", ".editorconfig", ".github", ".gitignore", ".pre-commit-config.yaml", "CHANGELOG.md", "CONTRIBUTING.md",
    "LICENSE", "LICENSE-APACHE", "LICENSE-MIT", "Makefile", "README.md", "SECURITY.md", "bench", "conf", "deploy",
    "docs", "jobs", "notebooks", "proto", "pyproject.toml", "reliable_channel", "requirements-build.lock",
    "requirements-runtime.lock", "requirements.lock", "scripts", "tests",
}  # fmt: skip
FORBIDDEN_IN_PARTICIPANT = SPARK | {"pandas", "pyarrow", "deltalake", "duckdb"}


def modules(rings: set[str]) -> list[Path]:
    """The source files of rings, generated code excepted."""
    found = [file for ring in rings for file in (PACKAGE / ring).rglob("*.py") if "_pb" not in file.parts]
    return sorted(found + [PACKAGE / f"{ring}.py" for ring in rings if (PACKAGE / f"{ring}.py").is_file()])


@cache
def imports(file: Path) -> list[tuple[str, int]]:
    """Every imported module's absolute name with its line; ``if TYPE_CHECKING`` blocks are imports as well."""
    here = ["reliable_channel", *file.relative_to(PACKAGE).with_suffix("").parts]
    found: list[tuple[str, int]] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = here[: -node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            if module == "reliable_channel":
                found += ((f"reliable_channel.{alias.name}", node.lineno) for alias in node.names)
            else:
                found.append((module, node.lineno))
    return found


def ring_of(name: str) -> str:
    return name.split(".")[1] if name.startswith("reliable_channel.") else ""


def outward(rings: set[str], allowed: set[str]) -> list[str]:
    """The imports of these rings that leave what they are allowed to know of this package."""
    return [
        f"{file.relative_to(PACKAGE.parent)}:{line} imports {name}"
        for file in modules(rings)
        for name, line in imports(file)
        if name.startswith("reliable_channel") and ring_of(name) not in allowed | {"__version__"}
    ]


def test_no_package_imports_one_that_stands_behind_it() -> None:
    page = (PACKAGE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"\b(\w+)/  ", page[page.index("reliable_channel/\n") : page.index("Nothing imports")])
    assert listed == [name for name in ORDER if name in listed] and set(listed) == set(ORDER)
    backwards = [
        f"{file.relative_to(PACKAGE.parent)}:{line} imports {name}"
        for number, package in enumerate(ORDER)
        for file in modules({package})
        for name, line in imports(file)
        if ring_of(name) in ORDER[number + 1 :]
    ]
    assert backwards == []


def test_the_core_is_there_to_be_tested() -> None:
    assert len(modules(CORE)) > 10


def test_the_core_imports_only_the_core() -> None:
    assert outward(CORE, CORE) == []


def test_the_core_has_no_clock_randomness_or_input_and_output() -> None:
    found = [
        f"{file.relative_to(PACKAGE.parent)}:{line} imports {name}"
        for file in modules(CORE)
        for name, line in imports(file)
        if (top := name.split(".")[0]) in FORBIDDEN_IN_CORE
        or not (top in sys.stdlib_module_names or top in CORE_LIBRARIES or top == "reliable_channel")
    ]
    assert found == []


def test_the_core_opens_no_file() -> None:
    calls = [
        f"{file.relative_to(PACKAGE.parent)}:{node.lineno}"
        for file in modules(CORE)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in {"open", "input", "print"}
    ]
    assert calls == []


def test_the_participant_imports_only_inward() -> None:
    assert outward(PARTICIPANT, CORE | PARTICIPANT) == []


def test_the_participant_knows_no_spark_and_no_tables() -> None:
    found = [
        f"{file.relative_to(PACKAGE.parent)}:{line} imports {name}"
        for file in modules(PARTICIPANT)
        for name, line in imports(file)
        if name.split(".")[0] in FORBIDDEN_IN_PARTICIPANT
    ]
    assert found == []


def test_the_truth_uses_nothing_of_what_it_is_compared_with() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE.parent)}:{line} imports {name}"
        for file in modules(SIMULATION)
        if not {CHECK, WHAT_IF} & {*file.parents}
        for name, line in imports(file)
        if name.startswith(("reliable_channel.simulation.check", "reliable_channel.simulation.what_if"))
        or (ring_of(name) and ring_of(name) not in CORE | PARTICIPANT | SIMULATION)
    ]
    assert wrong == []


def test_the_tables_import_the_core_and_the_configuration() -> None:
    assert outward(LAKE, CORE | LAKE | {"config"}) == []


def test_the_tables_need_no_spark() -> None:
    found = [
        f"{file.relative_to(PACKAGE.parent)}:{line} imports {name}"
        for file in modules(LAKE)
        for name, line in imports(file)
        if name.split(".")[0] in SPARK
    ]
    assert found == []


def test_the_pipeline_imports_only_inward_and_the_configuration() -> None:
    assert outward(PIPELINE, CORE | PARTICIPANT | LAKE | PIPELINE | {"config", "runtime"}) == []


def test_the_errors_import_nothing_of_the_package() -> None:
    assert [name for name, _ in imports(PACKAGE / "core" / "errors.py") if name.startswith("reliable_channel")] == []


def test_only_one_module_opens_spark() -> None:
    opening = {
        str(file.relative_to(PACKAGE))
        for file in PACKAGE.rglob("*.py")
        if "SparkSession.builder" in file.read_text(encoding="utf-8")
    }
    assert opening == {"runtime/spark.py"}


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import time", "time"),
        ("from os import path", "os"),
        ("def f():\n    import random", "random"),
        ("from reliable_channel import pipeline", "reliable_channel.pipeline"),
        ("from . import split", "reliable_channel.segmentation"),
        ("from ..sds import channel", "reliable_channel.sds"),
    ],
)
def test_the_reader_of_imports_sees_every_form(
    source: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    file = tmp_path / "segmentation" / "x.py"
    file.parent.mkdir()
    file.write_text(source, encoding="utf-8")
    assert [name for name, _ in imports(file)] == [expected]


def test_tests_import_no_other_tests() -> None:
    """What several need is in ``tests/support``."""
    tests = Path(__file__).parents[1]
    imported = re.compile(r"^\s*(?:from|import) (?:\w+\.)*test_\w+", re.MULTILINE)
    wrong = [str(file.relative_to(tests)) for file in tests.rglob("*.py") if imported.search(file.read_text("utf-8"))]
    assert wrong == []


def test_no_class_name_exists_twice() -> None:
    found = [
        node.name
        for file in modules({*ORDER})
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, times in Counter(found).items() if times > 1] == []


@pytest.mark.skipif(not (PACKAGE.parent / ".git").exists(), reason="not a checkout")
def test_what_a_probe_left_behind_is_not_committed() -> None:
    """`git add -A` once took a database that a probe had left in the working directory."""
    listed = subprocess.run(["git", "ls-files"], cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert {file.split("/")[0] for file in listed.stdout.splitlines()} <= TOP_LEVEL
