"""Check a built documentation site: links and anchors inside it lead somewhere, nothing is loaded from a network.

``python -m scripts.check_site build/site`` prints every fault and exits with 1 when there is one.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

_LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("source", "src"), ("iframe", "src"), ("image", "href")}
"""Elements that a browser loads by itself, unlike links that a reader follows."""


@dataclass
class Page(HTMLParser):
    """What one page refers to, and the anchors it offers."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "link" and given.get("rel") == "canonical":
            return
        for name, value in given.items():
            if (tag, name) in _LOADED:
                self.loaded.append(value)
            elif name == "href":
                self.links.append(value)


def faults(site: Path) -> list[str]:
    """What is wrong with the site, one sentence each; empty when all is well."""
    pages: dict[Path, Page] = {}
    for file in sorted(site.rglob("*.html")):
        pages[file] = Page()
        pages[file].feed(file.read_text(encoding="utf-8"))
    problems = []
    for file, page in pages.items():
        here = file.relative_to(site)
        for reference in page.loaded:
            if urlsplit(reference).netloc:
                problems.append(f"{here} loads {reference} from a network")
        for reference in (*page.links, *page.loaded):
            if fault := _explain_broken(site, file, reference, pages):
                problems.append(f"{here} links to {reference}: {fault}")
    for file in sorted(site.rglob("*.css")):
        for address in re.findall(r"url\([\"']?(https?:[^)\"']+)", file.read_text(encoding="utf-8")):
            problems.append(f"{file.relative_to(site)} loads {address} from a network")
    return problems


def _explain_broken(site: Path, file: Path, reference: str, pages: dict[Path, Page]) -> str | None:
    parts = urlsplit(reference)
    if parts.scheme or parts.netloc or not (parts.path or parts.fragment):
        return None
    base = site if parts.path.startswith("/") else file.parent
    target = (base / unquote(parts.path).lstrip("/")).resolve() if parts.path else file
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "there is no such file"
    fragment = unquote(parts.fragment)
    if fragment and not fragment.startswith("__") and target in pages and fragment not in pages[target].anchors:
        return "the page has no such anchor"
    return None


def main(arguments: list[str]) -> int:
    site = Path(arguments[0]).resolve()
    problems = faults(site)
    for fault in problems:
        print(fault, file=sys.stderr)
    if not problems:
        print(f"{len(list(site.rglob('*.html')))} pages in {arguments[0]}, all links lead somewhere.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
