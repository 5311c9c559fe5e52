"""The job ``deliver`` of version 0.1, whose work ack does since: what an upgrade must have finished before.

``deliver`` read ``deliveries`` and wrote ``delivered_messages``. Ack writes both tables in one micro-batch. Rows that
``deliver`` had still to read would never be delivered, and a micro-batch of ack that was interrupted would be delivered
a second time when it runs again.
"""

from __future__ import annotations

from reliable_channel.config import PathSettings
from reliable_channel.errors import ConfigurationError, EnvironmentFault
from reliable_channel.pipeline.storage.checkpoints import filesystem, read_checkpoint
from reliable_channel.pipeline.storage.commits import unread_of
from reliable_channel.pipeline.storage.io import open_table
from reliable_channel.pipeline.tables import DELIVERIES

RETIRED = "deliver"
_REMEDY = (
    "Run the version before this one once more (`jobs/ack.py --once`, then `jobs/deliver.py --once`), or"
    " `reliable-channel rebuild`, which derives the tables again (docs/howto/upgrade.md)."
)


def finish(paths: PathSettings) -> None:
    """Remove the checkpoint of ``deliver`` when all its work is done; without such a checkpoint nothing happens.

    The checkpoint would keep maintenance from removing files. Raises ``ConfigurationError`` when work is left."""
    retired = read_checkpoint(paths, RETIRED)
    if retired is None:
        return
    try:
        deliveries = open_table(paths, DELIVERIES)
    except EnvironmentFault:
        left = 0
    else:
        position = retired.offsets.delta.get(str(deliveries.metadata().id), 0)
        left = len(unread_of(deliveries, position))
    if left or retired.interrupted:
        raise ConfigurationError(
            f"The job deliver, whose work ack does now, has still to read {left} commits of deliveries.", _REMEDY
        )
    ack = read_checkpoint(paths, "ack")
    if ack is not None and ack.interrupted:
        raise ConfigurationError(
            "The job ack was interrupted in a micro-batch of the version before, which deliver may have read.", _REMEDY
        )
    files, root = filesystem(paths.checkpoint(RETIRED))
    files.delete_dir(root)
