"""One SDS channel at one point of observation (protocol.md §5)."""

from __future__ import annotations

from collections.abc import Sequence

from reliable_channel.sds.config import SdsConfig
from reliable_channel.sds.events import Outgoing, Step
from reliable_channel.wire.sds import SdsMessage


class SdsChannel:
    """The SDS state machine of one channel, for a participant or (``participant_id`` ``None``) an observer.

    Every method takes ``now`` in ms, never going back, and returns a :class:`Step`. Timers run in :meth:`tick` only:
    ``tick(now)`` runs every timer due up to ``now`` one by one, each at its own due time, so that one late tick equals
    many punctual ones.
    """

    def __init__(self, channel_id: str, participant_id: str | None, config: SdsConfig | None = None) -> None:
        self.channel_id = channel_id
        self.participant_id = participant_id
        self.config = config or SdsConfig()

    def send(self, contents: bytes | Sequence[bytes], now: int, *, required: int | None = None) -> Step:
        """Wrap the segments of one send in one step, with consecutive Lamport timestamps (data, then parity).

        ``required``: how many of them a recipient needs (k of k + m); all by default."""
        raise NotImplementedError

    def send_ephemeral(self, content: bytes, now: int) -> Step:
        """Wrap one ephemeral message: no timestamp, history or filter, remembered nowhere."""
        raise NotImplementedError

    def receive(
        self,
        message: SdsMessage,
        now: int,
        *,
        retrieval_hint: bytes | None = None,
        repaired: bool = False,
        data: bytes | None = None,
        content_digest: bytes | None = None,
        id_verified: bool | None = None,
    ) -> Step:
        """Take one decoded message.

        ``retrieval_hint``: the hash (32 bytes) of the envelope it came in. ``repaired``: it was rebuilt, not received,
        and its id recomputed. ``data``: its bytes as they were on the wire, for a later rebroadcast; without them it is
        encoded again. ``content_digest``: SHA-256 of the content, when the caller keeps contents elsewhere and
        ``message.content`` is ``None``. ``id_verified``: whether the caller has recomputed the id from the content;
        ``None``: do it here, when there is a conflict.
        """
        raise NotImplementedError

    def observe_sent(self, message: SdsMessage, now: int, *, retrieval_hint: bytes | None = None) -> Step:
        """An own message seen on the wire by a pipeline with a participant id: log, filter and outgoing buffer, no
        delivery. Seen again, it is a retransmission: only the hint is renewed."""
        raise NotImplementedError

    def sent(self, message_id: str, now: int, *, retrieval_hint: bytes | None = None) -> Step:
        """A dispatch of an own message succeeded: the wait for its acknowledgement starts now."""
        raise NotImplementedError

    def set_retrieval_hint(self, message_id: str, retrieval_hint: bytes) -> None:
        """Remember the hash of the newest envelope of a message; later histories carry it."""
        raise NotImplementedError

    def tick(self, now: int) -> Step:
        """Run every timer due up to ``now``, in the order of their due times, each at its own due time."""
        raise NotImplementedError

    def next_due(self) -> int | None:
        """The earliest time at which :meth:`tick` would do something, or ``None``."""
        raise NotImplementedError

    def unacknowledged(self) -> tuple[Outgoing, ...]:
        """What is in the outgoing buffer, oldest first: what a restarted participant dispatches again."""
        raise NotImplementedError

    def to_bytes(self) -> bytes:
        """A snapshot: versioned, bounded, protobuf (``proto/sds_state.proto``). The configuration is not in it."""
        raise NotImplementedError

    @classmethod
    def from_bytes(cls, data: bytes, config: SdsConfig | None = None) -> SdsChannel:
        """Restore a snapshot; continues identically. Raises ``LocalError`` for bytes that are none."""
        raise NotImplementedError
