"""Records how far a round of verdicts has read, in the information of the commit that wrote its verdicts. No Spark.

If the position is lost or belongs to other tables, the next round judges everything again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from deltalake import DeltaTable

from reliable_channel import __version__
from reliable_channel.config import Settings
from reliable_channel.lake.tables import Table

USER_METADATA = "userMetadata"
"""The field of a commit's information that contains the position."""

_COMMITS_READ = 20
"""How many commits are searched. Nearly all of them are rounds; maintenance adds a few."""


@dataclass(frozen=True, slots=True)
class RoundPosition:
    """``read``: table name → its id and the version up to which it was read. ``digest``: a digest of everything else
    that verdicts depend on; if it changes, existing verdicts may be wrong."""

    read: dict[str, tuple[str, int]]
    digest: str

    def text(self) -> str:
        """The position as text for a commit."""
        return json.dumps({"read": self.read, "digest": self.digest})


def position_of(opened: Mapping[Table, DeltaTable], settings: Settings, gaps: object) -> RoundPosition:
    """The position of a round over these tables. ``gaps``: the times in which no bridge listened, by topic."""
    settings_used = (
        __version__,
        settings.pipeline.settle_delay_ms,
        bool(settings.store.nodes),
        # Sets are sorted by value, because their own order depends on hashes, which differ between processes.
        json.dumps(settings.channels.model_dump(), default=sorted),
        sorted(settings.bridge.content_topics),
        gaps,
    )
    read = {table.name: (str(there.metadata().id), there.version()) for table, there in opened.items()}
    return RoundPosition(read, hashlib.sha256(repr(settings_used).encode()).hexdigest())


def last_position(status: DeltaTable) -> RoundPosition | None:
    """The position of the round that last wrote verdicts; ``None`` if :data:`_COMMITS_READ` commits have none.
    ``status``: the table of verdicts."""
    for commit in status.history(_COMMITS_READ):
        if (text := commit.get(USER_METADATA)) is not None:
            try:
                position = json.loads(text)
                read = {name: (str(table_id), int(version)) for name, (table_id, version) in position["read"].items()}
                return RoundPosition(read, str(position["digest"]))
            except (ValueError, KeyError, TypeError, AttributeError):
                return None  # somebody else's
    return None
