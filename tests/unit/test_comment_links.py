"""Comments and docstrings refer readers to pages, and to sections of them: these exist."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"docs/([\w/-]+\.md)(?:,? \*([^*]+)\*)?")
_TITLE = re.compile(r"^#+ (.+)$|^\**([^*\n]+)\*\*", re.MULTILINE)


def _list_links() -> Iterator[tuple[str, str, str]]:
    for file in sorted((ROOT / "reliable_channel").rglob("*.py")):
        text = re.sub(r"\n\s*(?:# )?", " ", file.read_text(encoding="utf-8"))
        yield from ((file.name, page, section) for page, section in _LINK.findall(text))


def test_the_pages_and_sections_that_the_code_names_exist():
    titles: dict[str, list[str]] = {}
    for file, page, section in _list_links():
        if page not in titles:
            text = (ROOT / "docs" / page).read_text(encoding="utf-8")
            titles[page] = ["".join(title) for title in _TITLE.findall(text)]
        # A paragraph may begin with its title in bold, a heading may go on after what is named.
        assert any(title.removeprefix("* ").startswith(section) for title in titles[page]), (file, page, section)
