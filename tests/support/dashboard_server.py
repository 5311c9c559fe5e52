"""A dashboard in this process, for tests in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reliable_channel.analysis.dashboard.app import create_app
from reliable_channel.analysis.dashboard.page_cache import PageCache
from reliable_channel.config import PathSettings
from tests.support.http_server import running


@contextmanager
def serve(tables: Path) -> Iterator[str]:
    """A dashboard over ``tables`` on a free port of loopback, quick to notice what is new; gives its address."""
    paths = PathSettings(data_dir=str(tables))
    app = create_app(paths, refresh_ms=200, cache=PageCache(paths, fresh_s=0.1))
    with running(app) as address:
        yield address
