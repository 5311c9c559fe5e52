"""What MkDocs does to docstrings on the page of the Python interface: no roles of Sphinx, no other documents."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:meth|class|func|mod|data|attr|exc):(?=<code>)")
_ELSEWHERE = re.compile(r" ?\((?:protocol|design|waku-rest)\.md[^)]*\)")


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Called by MkDocs with the HTML of every page."""
    if page.file.src_uri != "reference/python.md":
        return html
    return _ELSEWHERE.sub("", _ROLE.sub("", html))
