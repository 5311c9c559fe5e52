"""Runs the benches, writes ``build/bench/*.json`` and prints one table: ``python -m bench [--only NAME …] [--list]``.

Every figure is written as soon as it is known, so a bench that is stopped or fails keeps its figures.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

import bench
from bench.page import cells, renew
from bench.registry import REGISTERED, SIZES, Result

FRAME = frozenset(("__main__", "page", "registry"))
"""The modules of this package that are no benches."""


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen modules; returns the exit code. 0: all ran, whether targets are met or missed; 1: a bench failed;
    2: wrong arguments; 3: a target is missed, with ``--strict`` only; 130: stopped by Ctrl-C, keeping the figures
    measured until then."""
    modules = pkgutil.iter_modules(bench.__path__)
    names = sorted(module.name for module in modules if module.name not in FRAME and not module.ispkg)
    parser = argparse.ArgumentParser(prog="python -m bench", description=bench.__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", metavar="NAME", choices=names, help=f"one of: {', '.join(names)}")
    parser.add_argument("--output", type=Path, default=SIZES.output, help="directory of the JSON files")
    parser.add_argument("--scale", type=float, default=1.0, help="sizes of the benches; 0.1 is a quick look")
    parser.add_argument(
        "--workload", action="append", default=[], metavar="NAME", help="of the Spark benches only this"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 3 when a target is missed")
    parser.add_argument("--page", type=Path, metavar="FILE", help="renew the table of results on this page")
    parser.add_argument("--list", action="store_true", help="only print the modules' names")
    options = parser.parse_args(arguments)
    if options.list:
        print("\n".join(names))
        return 0
    SIZES.scale, SIZES.workloads, SIZES.output = options.scale, tuple(options.workload), options.output
    console = Console(width=None if sys.stdout.isatty() else 120)
    options.output.mkdir(parents=True, exist_ok=True)
    results_by_bench: dict[str, list[Result]] = {}
    broken: list[str] = []
    stopped = False
    try:
        for name in options.only or names:
            _run(name, results_by_bench.setdefault(name, []), options.output / f"{name}.json", console, broken)
    except KeyboardInterrupt:
        stopped = True
    table = Table("bench", "figure", "value", "unit", "target", "met", title="Benchmarks")
    table.columns[2].justify = table.columns[4].justify = "right"
    for name, results in results_by_bench.items():
        for result in results:
            table.add_row(name, result.name, *cells(result))
    console.print(table)
    for line in broken:
        console.print(f"[red]broken[/red] {line}", highlight=False)
    if stopped:
        return 130
    if options.page is not None:
        renew(options.page, {name: results for name, results in results_by_bench.items() if results})
    missed = any(result.met is False for results in results_by_bench.values() for result in results)
    return 1 if broken else 3 if missed and options.strict else 0


def _run(name: str, results: list[Result], file: Path, console: Console, broken: list[str]) -> None:
    """Append the results of one module and write them to ``file``. A bench that raises is added to ``broken``; the
    other benches still run, and its earlier figures are kept."""
    importlib.import_module(f"bench.{name}")
    for function in REGISTERED.get(name, []):
        console.print(f"{name}: {function.__name__} …", style="dim")
        try:
            for result in function():
                results.append(result)
                _write(results, file)
        except Exception as error:  # one failing bench must not hide the figures of the others
            broken.append(f"{name}.{function.__name__}: {type(error).__name__}: {error}")


def _write(results: list[Result], file: Path) -> None:
    rows = [
        {"name": r.name, "value": r.value, "unit": r.unit, "target": r.target, "met": r.met, "against": r.against}
        for r in results
    ]
    fresh = file.with_suffix(".tmp")
    fresh.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    fresh.replace(file)


if __name__ == "__main__":
    raise SystemExit(main())
