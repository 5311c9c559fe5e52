"""Segments of topics that store no plaintext, opened where they are reassembled (docs/pipeline.md *Encryption*)."""

from __future__ import annotations

from reliable_channel.config import ChannelsSettings
from reliable_channel.pipeline.ingest.decryption import Opener
from reliable_channel.pipeline.reassembly.sets import SegmentRow
from reliable_channel.wire.malformed import Malformed
from reliable_channel.wire.sds import decode_sds_message


class Unsealer:
    """Opens the segments of topics that store no plaintext: their rows hold the ciphertext. What no key opens any more
    stays as it is, and is then no segment."""

    def __init__(self, channels: ChannelsSettings) -> None:
        self._channels = channels
        self._opener = Opener()

    def __call__(self, row: SegmentRow) -> SegmentRow:
        topic = self._channels.topic_for(row.content_topic, row.pubsub_topic) if row.sealed else None
        if topic is None:
            return row
        opened = self._opener.open(row.content, topic, row.pubsub_topic, row.content_topic)
        message = opened if isinstance(opened, Malformed) else decode_sds_message(opened, topic.family)
        return row if isinstance(message, Malformed) else row._replace(content=message.content or b"")

    def __reduce__(self) -> tuple[type[Unsealer], tuple[ChannelsSettings]]:
        return Unsealer, (self._channels,)  # keys are read where they are used and never travel
