"""A Python environment for executors, as one archive: ``python scripts/pack_executors.py dist/executors.tar.gz``.

``spark-submit --archives dist/executors.tar.gz#environment`` unpacks it beside every executor, and
``PYSPARK_PYTHON=./environment/bin/python`` makes the executors use it (docs/scale-out.md). It holds what the package
depends on, in the versions that are installed here, so in those that were tested. It does not hold the package itself,
which travels by ``--py-files``, nor PySpark, which every Spark installation brings in its own version.

The archive is a virtual environment and not a Python: the machines of the executors need the same minor version of
Python at the same path as this machine.
"""

from __future__ import annotations

import re
import shutil
import sys
import tarfile
import tempfile
import venv
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PACKAGE = "reliable-channel"
LEFT_OUT = frozenset(
    {"pyspark", "py4j", "delta-spark"}
    | {"duckdb", "altair", "vl-convert-python", "jinja2"}
    | {"fastapi", "uvicorn", "httpx", "typer", "rich"}
)
"""What executors have from Spark itself (``--jars`` for Delta), what only reports use, and what only servers and the
command line do. What the jobs' drivers need stays: on YARN the driver may run in this environment as well."""

NOT_AT_RUN_TIME = frozenset({"tests", "include", "__pycache__"})
"""Directories of packages that nothing imports while jobs run: a third of the size."""

NOT_LOADED = re.compile(r"^(lib|_)(arrow_)?flight")
"""The part of Arrow that is loaded only when it is imported: 33 MB."""


def dependencies(root: str) -> dict[str, Distribution]:
    """The installed distributions that ``root`` needs, directly or not, by normalized name; without ``LEFT_OUT``."""
    distributions: dict[str, Distribution] = {}

    def visit(name: str, extras: frozenset[str]) -> None:
        key = re.sub(r"[-_.]+", "-", name).lower()
        if key in LEFT_OUT or (key in distributions and not extras):
            return
        distributions[key] = there = distribution(name)
        for text in there.requires or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in (extras or {""})):
                visit(needed.name, frozenset(needed.extras))

    visit(root, frozenset({"pipeline"}))
    del distributions[root]
    return distributions


def pack(target: Path) -> int:
    """Write the archive; returns its size (bytes)."""
    with tempfile.TemporaryDirectory() as directory:
        environment = Path(directory) / "environment"
        venv.create(environment, symlinks=True, with_pip=False)
        (packages,) = environment.glob("lib/python*/site-packages")
        for there in dependencies(PACKAGE).values():
            for file in there.files or []:
                if ".." in file.parts or NOT_AT_RUN_TIME & {*file.parts} or NOT_LOADED.match(file.name):
                    continue
                copy = packages / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(there.locate_file(file)), copy)
        target.parent.mkdir(parents=True, exist_ok=True)
        # Level 1: it is unpacked by every executor of every job, and most of it is machine code.
        with tarfile.open(target, "w:gz", compresslevel=1) as archive:
            archive.add(environment, arcname=".")
    return target.stat().st_size


def main(arguments: list[str]) -> int:
    """Pack into the file that is named; 2 when it is not named or the package is not installed."""
    if len(arguments) != 1:
        sys.stderr.write("pack_executors: name the archive to write: dist/executors.tar.gz\n")
        return 2
    try:
        size = pack(Path(arguments[0]))
    except PackageNotFoundError as missing:
        sys.stderr.write(f"pack_executors: {missing.name} is not installed here. Run make setup first.\n")
        return 2
    sys.stdout.write(f"{arguments[0]}: {size / 1_000_000:.0f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
