"""Decrypts the segments of topics that store no plaintext (docs/pipeline.md *Encryption*)."""

from __future__ import annotations

from reliable_channel.config import ChannelsSettings
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message
from reliable_channel.pipeline.ingest.decryption import Decryptor
from reliable_channel.pipeline.reassembly.sets import SegmentRow


class SegmentDecryptor:
    """Replaces the ciphertext in a segment's row by its plaintext. A row that no key opens any more stays as it is; it
    will not decode as a segment. Keys are read by the process that uses them and are not pickled."""

    def __init__(self, channels: ChannelsSettings) -> None:
        self._channels = channels
        self._decryptor = Decryptor()

    def __call__(self, row: SegmentRow) -> SegmentRow:
        topic = self._channels.topic_for(row.content_topic, row.pubsub_topic) if row.encrypted else None
        if topic is None:
            return row
        opened = self._decryptor.open(row.content, topic, row.pubsub_topic, row.content_topic)
        message = opened if isinstance(opened, Malformed) else decode_sds_message(opened, topic.family)
        return row if isinstance(message, Malformed) else row._replace(content=message.content or b"")

    def __reduce__(self) -> tuple[type[SegmentDecryptor], tuple[ChannelsSettings]]:
        return SegmentDecryptor, (self._channels,)
