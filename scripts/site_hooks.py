"""What MkDocs does to pages: pictures become part of them; docstrings lose Sphinx's roles."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_ROLE = re.compile(r":(?:meth|class|func|mod|data|attr|exc):(?=<code>)")
_PICTURE = re.compile(r'<img src="(assets/\w+\.svg)"[^>]*>')
_DOCS = Path(__file__).parents[1] / "docs"


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with the HTML of every page."""
    if page.file.src_uri != "reference/python.md":
        # Within the page, a picture has the page's colours, light or dark, and its links can be followed.
        return _PICTURE.sub(lambda picture: (_DOCS / picture[1]).read_text(encoding="utf-8"), html)
    return _ROLE.sub("", html)
