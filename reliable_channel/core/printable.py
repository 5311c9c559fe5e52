"""Makes untrusted text safe to show: in logs, errors and on terminals."""

from __future__ import annotations


def escape_unprintable(text: str, kept: str = "") -> str:
    """``text`` with escapes (``\\x1b``, ``\\n``, ``\\u202e``) for all characters that do not print, except those in
    ``kept``: they could control a terminal, begin a line of their own, or change the writing direction."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text)
