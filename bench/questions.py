"""Measures the questions of docs/questions.md before and after maintenance: the CPU time of each, and the files it
skips.

The tables of a day (the rows of ``bench/report.py``) have many commits, as micro-batches write them; then they are
compacted; then z-ordered by maintenance. Each question is run as on the page over all rows, over one content topic, and
over that topic in one hour. The target file size is reduced for these smaller tables, so that compaction gives as many
files as for a table of a gigabyte. A file is skipped if its statistics exclude the rows that DuckDB requests.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import numpy as np
import pyarrow.dataset as ds

from bench.registry import SIZES, Result, bench
from bench.report import make_tables
from reliable_channel.analysis.report.snapshot import create_views, find_names
from reliable_channel.config import PathSettings
from reliable_channel.lake.read import dataset_of, open_table, public_dataset
from reliable_channel.lake.tables import BY_NAME, TABLES, Table
from reliable_channel.lake.tables.views import QUERYABLE
from tests.support.questions import questions

ROWS, COMMITS = 500_000, 100
FILES = 8
"""The approximate number of files of a table after compaction: a gigabyte in files of 128 MiB."""
RUNS = 3
TOPIC = "content_topic = '/bench/1/7/proto'"
HOUR = "{0} >= TIMESTAMPTZ '2026-11-01 06:00:00Z' AND {0} < TIMESTAMPTZ '2026-11-01 07:00:00Z'"
SCOPES = {"over all": "", "one topic": TOPIC, "one topic, one hour": f"{TOPIC} AND {HOUR}"}
"""The rows over which a question is run; ``{0}`` is the time column of a table."""


@bench
def twenty_questions() -> Iterator[Result]:
    """Measure the CPU seconds of each question and of all, and the files they skip, for three layouts of the same
    rows."""
    with tempfile.TemporaryDirectory(prefix="bench-questions-") as directory:
        paths = PathSettings(data_dir=directory)
        make_tables(Path(directory), SIZES.scale_count(ROWS), SIZES.scale_count(COMMITS, 2))
        written = yield from _ask_all(paths, "as written")
        for table in TABLES:
            _merge_files(paths, table, z_order=False)
        yield from _ask_all(paths, "compacted")
        for table in TABLES:
            _merge_files(paths, table, z_order=True)
        ordered = yield from _ask_all(paths, "z-ordered")
    for scope in SCOPES:
        name = f"{scope}, all questions: z-ordered / as written"
        yield Result(name, ordered[scope] / written[scope], "ratio", 1.0, True, "tables as written")


def narrow(sql: str, scope: str) -> str:
    """Restrict a question to the rows of a scope, in each of its tables that has the necessary columns."""

    def part(name: re.Match[str]) -> str:
        columns = QUERYABLE[name[2]].names()
        time = next((name for name in ("event_time", "first_seen") if name in columns), None)
        if not scope or time is None or "content_topic" not in columns:
            return name[0]
        rows = f"(SELECT * FROM {name[2]} WHERE {scope.format(time)})"  # noqa: S608
        return f"{name[1]} {rows} {name[3] or name[2]}"

    # Names of tables and aliases are in lower case, SQL keywords in upper case.
    return re.sub(rf"\b(FROM|JOIN)\s+({'|'.join(QUERYABLE)})\b(?:\s+([a-z]\w*))?", part, sql)


def _ask_all(paths: PathSettings, layout: str) -> Generator[Result, None, dict[str, float]]:
    """Yield the figures of one layout; returns the total CPU seconds of all questions, by scope."""
    sums = {}
    for scope, rows in SCOPES.items():
        total = np.zeros(3)
        for question in questions():
            sql, took = narrow(question.duckdb, rows), []
            for _ in range(SIZES.count_repetitions(RUNS)):
                started = time.process_time()
                _answer(paths, sql)
                took.append(time.process_time() - started)
            _CountedFiles.read = _CountedFiles.there = 0
            _answer(paths, sql, counted=True)
            seconds, files = median(took), _CountedFiles.there
            skipped = files - _CountedFiles.read
            yield Result(f"{layout}, {scope}, {question.title}", seconds, "s")
            yield Result(f"{layout}, {scope}, {question.title} Files skipped of {files}", skipped, "files")
            total += seconds, skipped, files
        yield Result(f"{layout}, {scope}, all questions", total[0], "s")
        yield Result(f"{layout}, {scope}, all questions: files skipped of {total[2]:.0f}", total[1], "files")
        sums[scope] = float(total[0])
    return sums


def _merge_files(paths: PathSettings, table: Table, z_order: bool) -> None:
    """Compact a table as maintenance does, into about :data:`FILES` files."""
    opened = open_table(paths, table)
    size = sum(opened.get_add_actions(flatten=True).column("size_bytes").to_pylist()) // FILES
    if size and not z_order:
        opened.optimize.compact(target_size=size)
    elif size and table.z_order_by:
        opened.optimize.z_order(table.z_order_by, target_size=4 * size)  # delta-rs counts bytes before compression here


class _CountedFiles(ds.FileSystemDataset):  # type: ignore[misc]
    """A table that counts its scans: its files, and those whose statistics do not exclude the requested rows."""

    read = there = 0

    def scanner(self, **options: Any) -> ds.Scanner:
        _CountedFiles.there += len(self.files)
        _CountedFiles.read += len([*self.get_fragments(filter=options.get("filter"))])
        return super().scanner(**options)


def _answer(paths: PathSettings, sql: str, counted: bool = False) -> None:
    """Open the tables that ``sql`` names and run it in DuckDB, as the dashboard and ``reliable-channel sql`` do."""
    with duckdb.connect(config={"threads": 2}) as connection:
        names, views = find_names(sql)
        for name in names:
            table = open_table(paths, BY_NAME[name])
            rows = dataset_of(table) if counted else public_dataset(table)
            if counted:
                rows = _CountedFiles([*rows.get_fragments()], rows.schema, rows.format, rows.filesystem)
            connection.register(name, rows)
        create_views(connection, views)
        connection.sql(sql).to_arrow_table()
