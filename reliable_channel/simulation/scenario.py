"""Describes what to simulate: channels, participants, links, faults. Values only; the engine runs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.wire.sds import WireFamily

START_MS = 1_767_225_600_000
"""Virtual time begins at 2026-01-01T00:00:00Z, so that the same seed gives the same bytes on every day."""


class Fault(StrEnum):
    """Faults that can be injected into one message, so that each cause of a loss has a known example."""

    NEVER_SENT = "never_sent"
    """The sender took it into its log and dispatched nothing (it stopped before the network)."""
    RATE_LIMITED = "rate_limited"
    """Held by the sender's rate limit until after the end of the observation."""
    NOT_STORED = "propagated_not_stored"
    """Other participants received it and name it; neither the observer nor a store ever received it."""
    SEGMENT_MISSING = "segment_missing"
    """One segment more than parity could replace reaches neither the observer nor a store."""
    UNDECODABLE = "undecodable"
    """Every envelope of its last segment reaches the observer cut in half, and no store keeps it."""
    HASH_MISMATCH = "hash_mismatch"
    """The sender's segments carry a hash that is not the payload's."""
    UNDECRYPTABLE = "undecryptable"
    """Its envelopes are encrypted with a key that the observer has not (on an encrypted channel)."""
    LATE = "late"
    """It reaches the observer after it has been declared lost."""
    PARITY_SAVES = "parity_saves"
    """As many data segments as there are parity segments never reach the observer: parity must rebuild them."""


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Bursty loss: a two-state chain stepped once per envelope. Probabilities."""

    good_to_bad: float = 0.01
    bad_to_good: float = 0.25
    loss_good: float = 0.0
    loss_bad: float = 0.9


@dataclass(frozen=True, slots=True)
class LinkQuality:
    """How one directed link treats envelopes. Shares are probabilities per envelope; delays in ms.

    ``loss`` is independent; ``burst`` comes on top of it. A reordered envelope is held ``reorder_ms`` longer.
    """

    loss: float = 0.0
    burst: GilbertElliott | None = None
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_ms: int = 40
    jitter_ms: int = 60
    reorder_ms: int = 2_000

    def __post_init__(self) -> None:
        for name in ("loss", "duplicate", "reorder"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigurationError(f"simulation: {name} must be between 0 and 1.", "Give a share, e.g. 0.1.")


PERFECT = LinkQuality(delay_ms=20, jitter_ms=0)


@dataclass(frozen=True, slots=True)
class Partition:
    """From ``start_ms`` to ``end_ms`` (after the start of the scenario) ``members`` and the rest do not receive each
    other's envelopes. The observer is ``observer``; with ``is_observed`` it receives those of both sides."""

    start_ms: int
    end_ms: int
    members: frozenset[str]
    is_observed: bool = False


@dataclass(frozen=True, slots=True)
class Nap:
    """From ``start_ms`` to ``end_ms`` (after the start of the scenario) a participant is away: it neither sends nor
    receives, and what it had to send follows when it is back."""

    participant: str
    start_ms: int
    end_ms: int


@dataclass(frozen=True, slots=True)
class EpochLimit:
    """The envelopes that each participant may send in an epoch, as RLN counts them. What is over waits for the next
    epoch; sync messages that would have to wait are not sent."""

    envelopes: int
    epoch_ms: int

    def __post_init__(self) -> None:
        if self.envelopes < 1 or self.epoch_ms < 1:
            raise ConfigurationError("simulation: a rate limit admits nothing.", "Give 1 or more envelopes and ms.")


@dataclass(frozen=True, slots=True)
class SizeMix:
    """Shares of message sizes: short text, up to one segment, several segments (2 to ``max_segments``)."""

    short: float = 0.7
    medium: float = 0.1
    large: float = 0.2
    max_segments: int = 9


@dataclass(frozen=True, slots=True)
class Send:
    """One message of a conversation that is given instead of drawn: ms after the start of the scenario, bytes."""

    sender: str
    at_ms: int
    size: int
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """One attack that is planned: on which honest envelope (counted from 0), which attack, and the seed of its
    draws."""

    envelope: int
    attack: str
    draw: int = 0


@dataclass(frozen=True, slots=True)
class HostilePlan:
    """The attackers of a channel: how many, how often and with which attacks.

    ``per_envelope`` is the probability that an envelope of an honest participant provokes one attack; the first
    ``begins_after`` honest envelopes provoke none. ``attacks`` are names in ``ATTACKS`` of
    :mod:`reliable_channel.simulation.attacks`, all of which an empty tuple means, or in ``NAMED_ONLY``. ``moves`` are
    attacks beside these. ``flood`` is how many envelopes one flood has. ``heard_by_participants`` is whether the honest
    participants receive the attacks too, as the observer always does.
    """

    senders: tuple[str, ...] = ("mallory",)
    per_envelope: float = 0.5
    attacks: tuple[str, ...] = ()
    begins_after: int = 0
    flood: int = 20
    heard_by_participants: bool = True
    moves: tuple[Move, ...] = ()


@dataclass(frozen=True, slots=True)
class ChannelPlan:
    """One reliable channel. Times in ms after the start of the scenario; sizes in bytes."""

    channel_id: str
    content_topic: str
    participants: tuple[str, ...]
    messages: int
    duration_ms: int
    pubsub_topic: str = "/waku/2/rs/1/0"
    segment_size: int = 4_096
    parity_rate: float | None = None
    sizes: SizeMix = SizeMix()
    between: LinkQuality = LinkQuality()
    to_observer: LinkQuality = LinkQuality()
    partitions: tuple[Partition, ...] = ()
    joins_at: tuple[tuple[str, int], ...] = ()
    sleeps: tuple[Nap, ...] = ()
    rate_limit: EpochLimit | None = None
    ephemeral: float = 0.0
    encrypted: bool = False
    encryption_layer: EncryptionLayer = EncryptionLayer.AROUND_SDS
    """What is encrypted on an encrypted channel."""
    repeats: float = 0.05
    """Share of short messages that repeat the same word, and of large ones that repeat the same file."""
    faults: tuple[tuple[int, Fault], ...] = ()
    """(message number, fault)."""
    family: WireFamily = WireFamily.SPEC
    """The wire family that everybody on the channel uses."""
    foreign: tuple[tuple[str, Callable[[str, str], Any]], ...] = ()
    """(participant, another SDS implementation: channel id and name → an object with the methods of ``SdsChannel`` that
    :class:`~.participant.SimulatedParticipant` uses)."""
    sends: tuple[Send, ...] | None = None
    """The conversation itself; unset: ``messages`` are drawn."""
    links: tuple[tuple[str, str, LinkQuality], ...] = ()
    """(sender, receiver, quality) of links that differ from ``between``."""
    sds: tuple[tuple[str, Any], ...] = ()
    """Fields of ``SdsParameters`` that differ from the default, and their values."""
    hostile: HostilePlan | None = None
    """Attacks on this channel; not possible on an encrypted one, whose key strangers do not have."""

    def __post_init__(self) -> None:
        if len(set(self.participants)) != len(self.participants) or not self.participants:
            raise ConfigurationError("simulation: participants must be distinct and at least one.", "Name them apart.")
        if self.hostile is not None and self.encrypted:
            raise ConfigurationError("simulation: an encrypted channel cannot be attacked.", "Leave out one of both.")


@dataclass(frozen=True, slots=True)
class StorePlan:
    """A store node: its name, and the link over which it receives all channels. It does not store envelopes that the
    link loses. From ``off_ms`` on, if set, for ``off_for_ms`` it keeps nothing (ms after the start of the scenario)."""

    name: str
    link: LinkQuality = LinkQuality()
    off_ms: int | None = None
    off_for_ms: int = 0


@dataclass(frozen=True, slots=True)
class Scenario:
    """A whole simulation. ``drain_ms`` is how long the participants continue (syncs, retransmissions, repairs) after
    the last send; ``bad_input`` is the number of records that must be quarantined. ``vantages`` are the bridges that
    wrote the observer's records, each with the share of the envelopes that it saw."""

    seed: int
    channels: tuple[ChannelPlan, ...]
    start_ms: int = START_MS
    drain_ms: int = 240_000
    bad_input: int = 0
    plain_waku: int = 0
    """Ordinary Waku envelopes on content topics that are no channels."""
    stores: tuple[StorePlan, ...] = ()
    vantages: tuple[tuple[str, float], ...] = (("bridge", 1.0),)

    @property
    def end_ms(self) -> int:
        """The virtual time at which the participants stop."""
        return self.start_ms + max((c.duration_ms for c in self.channels), default=0) + self.drain_ms
