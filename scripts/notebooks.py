"""Renders the notebooks over the demos' tables into docs/rendered: ``make notebooks``.

Each page is one file: what nbconvert makes of the cells, in a frame of our own, which loads nothing."""

from __future__ import annotations

import os
import sys
from html import escape
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbconvert import HTMLExporter

ROOT = Path(__file__).parents[1]
RENDERED = ROOT / "docs" / "rendered"
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 60rem; background: #fff; color: #1f2328;
  font: 16px/1.5 system-ui, "Liberation Sans", sans-serif; }}
pre {{ padding: .6rem .8rem; background: #f6f8fa; border-radius: 6px; overflow-x: auto;
  font-size: .82rem; white-space: pre-wrap; }}
.jp-OutputArea-output, .output_area {{ overflow-x: auto; }}
.jp-InputPrompt, .jp-OutputPrompt, .prompt, .anchor-link {{ display: none; }}
svg {{ max-width: 100%; height: auto; }}
table {{ border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }}
caption {{ text-align: left; color: #57606a; }}
th, td {{ padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #d8dee4; text-align: left; vertical-align: top; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def main() -> None:
    """Write the pages: ``bad-day`` from the tables in build/demo-bad-day, the others from those in build/demo. The
    arguments are names of notebooks; all by default."""
    RENDERED.mkdir(exist_ok=True)
    for file in sorted((ROOT / "notebooks").glob("*.ipynb")):
        if sys.argv[1:] and file.stem not in sys.argv[1:]:
            continue
        tables = Path("build") / ("demo-bad-day" if file.stem == "bad-day" else "demo") / "tables"
        os.environ["RELIABLE_CHANNEL_TABLES"] = str(tables.resolve())
        notebook = nbformat.read(file, as_version=4)
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(ROOT)}}).execute()
        (RENDERED / f"{file.stem}.html").write_text(page(notebook), encoding="utf-8")


def page(notebook: nbformat.NotebookNode) -> str:
    """An executed notebook as one page. Widgets need a kernel, so each is shown as its table."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    notebook.metadata.pop("widgets", None)
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    heading = notebook.cells[0].source.splitlines()[0].removeprefix("# ")
    return PAGE.format(title=escape(heading), body=body)


if __name__ == "__main__":
    main()
