"""Defines what an attacker knows, and what the pipeline may do with what it sends.

An attacker receives all honest traffic, may publish any bytes, and reaches the observer before or after the envelope it
attacks. It cannot delete or alter the envelopes of others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from reliable_channel.core.wire.hashing import sds_message_id
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily

BEFORE_MS, AFTER_MS = 1, 4_000
"""After how many ms an attack reaches the observer: before any honest link delivers the attacked envelope, or after."""


class Fate(StrEnum):
    """The possible outcomes of a hostile SDS message at the observer."""

    MESSAGE = "message"
    """It is an ordinary message of the sender it claims: delivered once."""
    ANY = "any"
    """Delivered as what it is, refused or quarantined, depending on limits. It never changes another message's row."""
    COPY = "copy"
    """An exact copy of an honest message but for its history: the message arrives with it, and waits only for what all
    of its copies name."""
    NOTHING = "nothing"
    """Never delivered: an honest message is known under its id."""


@dataclass(frozen=True, slots=True)
class Forgery:
    """One hostile SDS message. ``delay_ms`` counts from the attacked envelope's dispatch to the observer."""

    attack: str
    message: SdsMessage
    data: bytes
    delay_ms: int
    fate: Fate


@dataclass(frozen=True, slots=True)
class Scene:
    """The knowledge of an attacker just after an honest ``victim`` was dispatched.

    ``heard`` are the honest messages so far, the newest last and the victim among them; ``now`` is in virtual Unix
    ms; ``flood`` is the number of envelopes of one flood.
    """

    channel_id: str
    attacker: str
    victim: SdsMessage
    heard: Sequence[SdsMessage]
    participants: tuple[str, ...]
    now: int
    flood: int
    draw: random.Random
    family: WireFamily = WireFamily.SPEC

    def clock(self, ahead_ms: int = 0) -> int:
        """A Lamport timestamp so far ahead of now, in the unit of the family's clock."""
        return (self.now + ahead_ms) // (1_000 if self.family is WireFamily.NIM else 1)

    def text(self) -> str:
        """Sixteen hexadecimal digits that no other draw gives."""
        return self.draw.randbytes(8).hex()

    def one_of_the_others(self) -> str:
        """An honest participant who did not send the victim, or the attacker when there is none."""
        others = [name for name in self.participants if name != self.victim.sender_id]
        return self.draw.choice(others) if others else self.attacker

    def recent(self, count: int) -> tuple[HistoryEntry, ...]:
        """The newest honest content messages as history entries."""
        content = [m for m in self.heard if m.content is not None and m.lamport_timestamp is not None]
        return tuple(HistoryEntry(m.message_id) for m in content[-count:])

    def make_message(self, content: bytes | None = None, **changes: object) -> SdsMessage:
        """A well-formed content message of the attacker with an id that can be recomputed, but for ``changes``."""
        content = f"hostile {self.text()}".encode() if content is None else content
        sender = str(changes.get("sender_id", self.attacker))
        lamport = changes.get("lamport_timestamp", self.clock())
        fields: dict[str, object] = {
            "sender_id": sender,
            "message_id": sds_message_id(sender, lamport if isinstance(lamport, int) else 0, content),
            "channel_id": self.channel_id,
            "lamport_timestamp": lamport,
            "content": content,
        }
        return SdsMessage(**{**fields, **changes})  # type: ignore[arg-type]


Recipe = Callable[[Scene], Iterator[tuple[SdsMessage, int, Fate]]]
"""Makes the messages of one attack: each with its delay (ms, as in :class:`Forgery`) and its possible outcome."""
