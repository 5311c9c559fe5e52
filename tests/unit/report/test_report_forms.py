"""The forms of a report: in a terminal, as CSV files and as a page, and how numbers are written for people."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from reliable_channel.analysis import text
from reliable_channel.analysis.report import csv_files, layout, terminal
from reliable_channel.analysis.report.summary import SECTIONS
from reliable_channel.cli.commands.report import write_whole
from reliable_channel.core.errors import EnvironmentFault
from tests.support.disk import files_up_to
from tests.support.reports import CONTROL, report
from tests.support.sample_values import HOSTILE

# Terminal


def test_the_terminal_shows_every_section_and_no_control_characters(sample_tables: Path) -> None:
    answer = report(sample_tables)
    for section in layout.SECTIONS:
        assert section.title in answer.stdout
    assert not CONTROL.search(answer.stdout)
    assert "[bold red]rich[/bold red]" in answer.stdout, "markup of strangers is text"


@pytest.mark.parametrize("width", [80, 120, 160])
def test_no_column_is_cut_to_nothing(as_json: dict[str, Any], width: int) -> None:
    console = Console(width=width, file=io.StringIO(), record=True)
    terminal.render(console, as_json, [])
    said = console.export_text().split("What was never seen")[1].split("Where envelopes")[0]
    for row in as_json["source_gaps"]:
        time = row["from_time"][:19].replace("T", " ")
        (line,) = [line for line in said.splitlines() if time[5:] in line]
        assert line.startswith(row["name"][:4]) and (width < 100 or row["status"] in line)


# CSV


def test_csv_files_hold_the_sections_and_no_formula(everything: tuple[str, str, Path], as_json: dict[str, Any]) -> None:
    files = list(everything[2].iterdir())
    assert {path.stem for path in files} == {name for name in SECTIONS if as_json[name]}
    for path in files:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        assert len(rows) == len(as_json[path.stem]) + 1
        for cell in (cell for row in rows for cell in row):
            assert not cell.lstrip().startswith(("=", "+", "@")) and not CONTROL.search(cell)
            assert not cell.startswith("-") or float(cell) <= 0


def test_no_csv_file_of_an_earlier_report_is_left(sample_tables: Path, tmp_path: Path) -> None:
    assert report(sample_tables, "--csv", str(tmp_path)).exit_code == 0
    assert (tmp_path / "missing.csv").exists()
    assert report(sample_tables, "--csv", str(tmp_path), "--to", "2026-01-01").exit_code == 0
    assert not (tmp_path / "missing.csv").exists()


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "  =1", "＝1", "\x01=1", "\u200b=1"])
def test_what_begins_like_a_formula_is_text(value: str) -> None:
    assert csv_files.safe(value).startswith("'")


def test_what_is_like_a_formula_where_semicolons_end_cells_is_text() -> None:
    assert csv_files.safe("talk; =1+1;\t-2;x=3;@SUM(A1)") == "talk;' =1+1;' -2;x=3;'@SUM(A1)"


def test_other_cells_stay_as_they_are() -> None:
    assert [csv_files.safe(v) for v in ("plain", -1.5, None, "a=b")] == ["plain", -1.5, None, "a=b"]


# The page


class Page(HTMLParser):
    """Its tags with their attributes, and its text."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def source(everything: tuple[str, str, Path]) -> str:
    return everything[1]


def test_the_page_needs_nothing_else_and_can_run_nothing(source: str) -> None:
    page = Page(source)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "form", "base", "svg"}
    for _, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        for name in ("src", "href"):
            if name in attributes:
                assert str(attributes[name]).startswith(("data:image/svg+xml;base64,", "#"))
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none'; img-src data:; style-src 'sha256-")
    style = re.search(r"<style>(.*?)</style>", source, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    assert f"'sha256-{digest}'" in policy, "else a browser shows the page without its style"


def test_hostile_names_are_words_in_the_page(source: str) -> None:
    page = Page(source)
    for hostile in HOSTILE:
        assert text.name(hostile) in page.text
    assert "<script" not in source.lower() and not CONTROL.search(source)
    assert html.escape("<script>alert('x')</script>", quote=True).replace("&#x27;", "&#39;") in source


def test_the_page_has_its_pictures_with_words_its_tables_and_the_crossed_threshold(source: str) -> None:
    page = Page(source)
    pictures = [a for tag, a in page.tags if tag == "img"]
    assert len(pictures) == 19 and all(a["alt"] for a in pictures)
    assert sum(tag == "table" for tag, _ in page.tags) == len(layout.SECTIONS)
    assert "--max-loss 0.1 %: crossed" in page.text


def test_the_report_tells_who_is_behind_in_its_window(sample_tables: Path) -> None:
    def behind(*options: str) -> list[str]:
        return [
            note for note in json.loads(report(sample_tables, "--json", *options).stdout)["notes"] if "lack" in note
        ]

    assert behind() == ["carol lacks 4 messages of talk since 2026-11-01 12:30:00 (UTC)."]
    assert behind("--channel", "talk") == behind()
    assert behind("--channel", "files") == behind("--to", "2026-11-01T12:10") == []


def test_a_page_that_cannot_be_written_is_a_fault_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match="another place"):
        write_whole(tmp_path / "file" / "report.html", "<html>")
    with files_up_to(100), pytest.raises(EnvironmentFault, match=r"report\.html cannot be written: File too large"):
        write_whole(tmp_path / "report.html", "<html>" * 100)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


# Words


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (text.percent(0.0004), "0.04 %"),
        (text.percent(0), "0 %"),
        (text.percent(0.5), "50.0 %"),
        (text.duration(90_000), "90 s"),
        (text.duration(600_000), "10 min"),
        (text.duration(None), "–"),
        (text.size(1536), "1.5 KiB"),
        (text.size(1010 * 1024), "1,010 KiB"),
        (text.number(1234.5), "1,234"),
        (text.time("2026-11-01T12:00:00.100000Z"), "2026-11-01 12:00:00"),
        (text.name("a" * 100), "a" * 40 + "…" + "a" * 19),
        (" ".join(map(text.percent, (-1, -0.9999, -0.125, -0.0012))), "-100 % < -99.9 % -12.5 % -0.12 %"),
        (
            "; ".join(text.pluralize(number, "open sets") for number in (0, 1, 2_000)),
            "0 open sets; 1 open set; 2,000 open sets",
        ),
    ],
)
def test_numbers_are_written_for_people(written: str, expected: str) -> None:
    assert written == expected
