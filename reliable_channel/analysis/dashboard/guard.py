"""Who may read the dashboard, and the security headers of its responses.

The policy allows only our own files, so that markup that was not escaped could neither run nor load anything.
"""

from __future__ import annotations

from collections.abc import Collection

from reliable_channel.transport.http.guard import AccessRules, allowed_hosts

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SVG_POLICY = "default-src 'none'; style-src 'unsafe-inline'; sandbox"
"""The policy for a chart opened alone: it allows the chart's own styles and nothing else."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-cache, private",
}


def dashboard_access(token: str | None, hosts: Collection[str]) -> AccessRules:
    """The rules of a dashboard that answers to ``hosts`` and to loopback; ``token`` None lets everybody read."""
    return AccessRules(
        allowed_hosts(hosts),
        "dashboard.allowed_hosts",
        token,
        realm="reliable-channel dashboard",
        methods=frozenset({"GET"}),
        headers=_HEADERS,
    )
