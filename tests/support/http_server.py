"""A server of ours on a free port of loopback, on a thread, for the length of a block."""

from __future__ import annotations

from reliable_channel.transport.http.server import serve_in_thread as running

__all__ = ["running"]
