"""Recognises from a table's log that somebody restored or overwrote it, so that rows are missing or would come twice.

RESTORE makes an older version of a table the newest one, and a write with the mode *overwrite* replaces all rows. The
numbers of versions and the applied transactions go on all the same, so neither a checkpoint nor the position of a round
of verdicts shows that appended rows are gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.lake.checkpoints import filesystem
from reliable_channel.lake.follow import RESTORE, get_commit_info, list_appended, read_commit
from reliable_channel.lake.history import appends, overwrites
from reliable_channel.lake.tables import CLOCK, ENVELOPES, ORDERED_SDS_MESSAGES, SDS_MESSAGES, Table

REBUILD = "run `reliable-channel rebuild`, which derives the tables again with new checkpoints."
"""The remedy for tables and checkpoints that can be derived from envelopes."""
ELSEWHERE = (
    "set paths.data_dir and paths.checkpoint_dir to new places, where ingest reads again what is still in Kafka."
)
"""The remedy for those that cannot."""

_STREAMED = (SDS_MESSAGES, ORDERED_SDS_MESSAGES)
"""The tables that queries read as streams."""


def refuse_restored(paths: PathSettings, table: Table, opened: DeltaTable) -> None:
    """Raise ``ConfigurationError`` if a RESTORE or an overwrite after the last append took rows of micro-batches out of
    a table, or if a RESTORE put rows back into one that is a stream's source, which would read them a second time.

    To undo somebody's change does no harm elsewhere. Reads one small file of the log, or a few after maintenance."""
    files, root = filesystem(paths.table(table.name))
    for version in range(opened.version(), 0, -1):
        actions = read_commit(files, root, version) or []
        about = get_commit_info(actions)
        restores = about.get("operation") == RESTORE
        if restores or overwrites(about):
            remedy = ELSEWHERE if table in (ENVELOPES, CLOCK) else REBUILD
            instead = remedy[0].upper() + remedy[1:]
            if _takes_appended_rows(files, root, table, version, actions):
                raise ConfigurationError(
                    f"{'RESTORE' if restores else 'An overwrite'} took rows out of the table {table.name} that a job"
                    " had written.",
                    instead if table in _STREAMED else f"Restore its version {version - 1}, or {remedy}",
                )
            if restores and table in _STREAMED and not _list_paths(actions, "remove"):
                raise ConfigurationError(
                    f"RESTORE put rows back into the table {table.name}, which a job would read a second time.", instead
                )
        if restores or appends(about) or _is_of_job(actions):
            return


def _takes_appended_rows(files: Any, root: str, table: Table, version: int, actions: list[dict[str, Any]]) -> bool:
    """Whether the commit of ``version``, with these ``actions``, removed rows of a micro-batch, and did not only undo a
    change."""
    returned = _list_paths(actions, "add")
    gone = _list_paths(actions, "remove")
    for earlier in range(version - 1, -1, -1):
        if not gone:
            break
        before = read_commit(files, root, earlier) or []
        if _is_of_job(before) and gone & (list_appended(table, before) or {}).keys():
            return True
        if gone & (added := _list_paths(before, "add")):  # a change: what it replaced is back, or gone as well
            gone = (gone - added | _list_paths(before, "remove")) - returned
    return False


def _is_of_job(actions: Iterable[dict[str, Any]]) -> bool:
    """Whether a commit is that of a micro-batch or of evidence, which records its number."""
    return any("txn" in action for action in actions)


def _list_paths(actions: list[dict[str, Any]], kind: str) -> set[str]:
    return {unquote(action[kind]["path"]) for action in actions if kind in action}
