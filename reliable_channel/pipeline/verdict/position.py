"""Records how far a round of verdicts has read, in the information of the commit that wrote its verdicts. No Spark.

If the position is lost or belongs to other tables, the next round judges everything again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from deltalake import DeltaTable

from reliable_channel import __version__
from reliable_channel.config import PathSettings, Settings
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.lake.follow import list_added_files
from reliable_channel.lake.read import open_at, open_table
from reliable_channel.lake.restored import ELSEWHERE, REBUILD, refuse_restored
from reliable_channel.lake.tables import DELIVERY_STATUS, ENVELOPES, Table
from reliable_channel.pipeline.verdict.gaps import Silence

USER_METADATA = "userMetadata"
"""The field of a commit's information that contains the position."""

_COMMITS_READ = 20
"""How many commits are searched. Nearly all of them are rounds; maintenance adds a few."""


@dataclass(frozen=True, slots=True)
class RoundPosition:
    """``read``: table name → its id and the version up to which it was read. ``silence``: a digest of the times in
    which no bridge listened; if it changes, verdicts on what was not delivered may be wrong. ``digest``: a digest of
    everything else that verdicts depend on; if it changes, all of them may be."""

    read: dict[str, tuple[str, int]]
    digest: str
    silence: str

    def text(self) -> str:
        """The position as text for a commit."""
        return json.dumps(asdict(self))


def make_position(opened: Mapping[Table, DeltaTable], settings: Settings, silence: Silence) -> RoundPosition:
    """The position of a round over these tables."""
    settings_used = (
        __version__,
        settings.pipeline.settle_delay_ms,
        bool(settings.store.nodes),
        # Sets are sorted by value, because their own order depends on hashes, which differ between processes.
        json.dumps(settings.channels.model_dump(), default=sorted),
        sorted(settings.bridge.content_topics),
    )
    read = {table.name: (str(there.metadata().id), there.version()) for table, there in opened.items()}
    return RoundPosition(
        read,
        _compute_digest(settings_used),
        _compute_digest((silence.gaps, sorted(silence.received.items(), key=repr))),
    )


def read_last_position(paths: PathSettings) -> RoundPosition | None:
    """As :func:`find_position`, of the table at its place; ``None`` if there is none."""
    status = open_at(paths.table(DELIVERY_STATUS.name))
    return None if status is None else find_position(paths, status)


def refuse_older_tables(
    paths: PathSettings, position: RoundPosition | None, opened: Mapping[Table, DeltaTable]
) -> None:
    """Raise ``ConfigurationError`` if a table was restored from a copy older than the round of ``position``: messages
    whose evidence is gone would turn from *delivered* into *missing*, and of envelopes a rebuild would lose rows. Also
    as :func:`refuse_restored`."""
    for table, there in opened.items():
        refuse_restored(paths, table, there)
        table_id, version = ("", 0) if position is None else position.read.get(table.name, ("", 0))
        if str(there.metadata().id) != table_id or there.version() >= version:
            continue
        if open_table(paths, table).version() < version:  # else another round has read what came after it was opened
            raise ConfigurationError(
                f"The table {table.name} is older than the verdicts: rows between them would be missing.",
                "Restore the tables and the checkpoints of one time, or "
                + (ELSEWHERE if table == ENVELOPES else REBUILD),
            )


def _compute_digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogatepass")).hexdigest()


def find_position(paths: PathSettings, status: DeltaTable) -> RoundPosition | None:
    """The position of the round that last wrote verdicts; ``None`` if :data:`_COMMITS_READ` commits have none, or if
    somebody has added, changed or restored verdicts since. ``status``: the table of verdicts."""
    for commit in status.history(_COMMITS_READ):
        if (text := commit.get(USER_METADATA)) is not None:
            if list_added_files(paths, DELIVERY_STATUS, status, commit["version"]) != {}:
                return None
            try:
                position = json.loads(text)
                read = {name: (str(table_id), int(version)) for name, (table_id, version) in position["read"].items()}
                return RoundPosition(read, str(position["digest"]), str(position["silence"]))
            except (ValueError, KeyError, TypeError, AttributeError):
                return None  # somebody else's
    return None
