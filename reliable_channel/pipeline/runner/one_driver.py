"""Lets one driver at a time run a query, where its checkpoint is on a disk.

Spark and delta-rs notice a second driver only when both have rows to write (docs/operations.md, *What was tried*).
Until then two live side by side, and where one ends in order, nobody notices that the other one dies: both declare
themselves under the query's name (:mod:`reliable_channel.lake.live`). Object stores have no locks.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport.file_lock import FileLock

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
"""What the file systems say that have no locks either."""


@contextmanager
def hold_checkpoints(paths: PathSettings, queries: Iterable[str]) -> Iterator[None]:
    """Hold the checkpoints of these queries inside the block, until this process ends at the latest.

    Raises ``EnvironmentFault`` if another process, or another thread of this one, holds one of them."""
    with ExitStack() as held:
        for query in queries:
            checkpoint = paths.checkpoint(query)
            if "://" not in checkpoint:
                _lock(query, Path(f"{checkpoint}.lock"), held)
        yield


def _lock(query: str, path: Path, held: ExitStack) -> None:
    try:
        held.callback(FileLock(path).release)
    except BlockingIOError:
        raise EnvironmentFault(
            f"The query {query} runs already on the checkpoint {path.with_suffix('')}.",
            "Stop what runs it, or wait for its end.",
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
