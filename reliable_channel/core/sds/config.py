"""Defines the settings of an SDS channel, with the names and defaults of LIP-109 and RELIABLE-CHANNEL-API."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.settings import check_settings
from reliable_channel.core.wire.bloom import SATURATED, FilterFamily, FilterFormat
from reliable_channel.core.wire.sds import (
    MAX_HISTORY_ENTRIES,
    HistoryLayout,
    SdsMessage,
    WireFamily,
    encode_sds_message,
)

NIM_SETTINGS = {
    "causal_history_size": 10,
    "repair_t_max_ms": 300_000,
    "sync_min_interval_ms": 60_000,
    "sync_with_repairs": 1.0,
}
"""What differs with peers that run nim-sds (read at 07491b2). They log each sync message and name it like content, so
fewer are sent: more of them would fill its causal histories of 10 ids."""

_POSITIVE = (
    "clock_unit_ms",
    "acknowledgement_timeout_ms",
    "possible_acks_threshold",
    "repair_response_groups",
    "sweep_in_buf_interval_ms",
    "retrieve_frequency_ms",
    "max_log_entries",
    "max_tracked",
)

MAX_RETRANSMISSIONS = 1_000
"""More would make the sum of their waits, each twice the one before, too long a number to compute or print."""
MAX_STRETCHED_WAIT_MS = 2_400_000
"""The longest that an acknowledgement is waited for because dispatch is slow: four epochs of the default rate limit, in
which a participant that always has content sends one sync message."""


class Tracking(StrEnum):
    """Selects the messages whose acknowledgements are tracked."""

    OWN = "own"
    EVERYONE = "everyone"


class Retransmission(StrEnum):
    """Selects how long each wait for an acknowledgement is."""

    ADAPTIVE = "adaptive"
    """Each wait is twice the one before it, and at least twice as long as the dispatch took."""
    FIXED = "fixed"
    """Every wait is ``acknowledgement_timeout_ms``, as in RELIABLE-CHANNEL-API."""


def deterministic_jitter(channel_id: str, participant_id: str, counter: int) -> float:
    """Return the default jitter: a number in [0, 1) that depends on participant and use but not on the run, so that a
    replay sends the same sync messages at the same times."""
    digest = hashlib.sha256(f"{channel_id}\x00{participant_id}\x00{counter}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class SdsParameters:
    """The settings of an SDS channel. Times are in ms. A snapshot does not contain them: the owner passes them
    again."""

    wire_family: WireFamily = WireFamily.SPEC
    history_layout: HistoryLayout = HistoryLayout.ENTRIES
    """How a participant writes its histories in the nim family."""
    filter_format: FilterFormat = field(default_factory=FilterFormat)
    clock_unit_ms: int = 1
    """The unit of Lamport timestamps (ms): nim-sds counts seconds."""

    # Sending and acknowledgements
    causal_history_size: int = 2
    acknowledgement_timeout_ms: int = 5_000
    max_retransmissions: int = 5
    retransmission: Retransmission = Retransmission.ADAPTIVE
    """``adaptive``: each wait for an acknowledgement is twice the one before it, and at least twice as long as the
    dispatch took. ``fixed``: every wait is ``acknowledgement_timeout_ms``."""
    wait_for_sent: bool = False
    """True: the wait for an acknowledgement starts when the owner calls ``record_sent()``, not at ``send()``."""
    possible_acks_threshold: int = 2
    saturation_limit: float = SATURATED
    """A filter with a larger share of its bits set acknowledges nothing."""
    tracking: Tracking | None = None
    """``None``: own messages for a participant, everyone's for an observer."""

    # Sync and repair (participants only)
    sync_min_interval_ms: int = 30_000
    """0 disables sync messages."""
    sync_after_content: float = 0.5
    sync_with_repairs: float = 0.3
    acknowledge_within_ms: int = 800
    """Received content that only its sender has named is acknowledged by a sync message after a random part of this
    time; well below the sender's ``acknowledgement_timeout_ms``. 0: only by the sync messages of the interval."""
    jitter: Callable[[str, str, int], float] = deterministic_jitter
    """``(channel id, participant id, counter) -> [0, 1)``: the only randomness, and it is an input."""
    repair: bool = True
    """SDS-R."""
    repair_t_min_ms: int = 30_000
    repair_t_max_ms: int = 120_000
    repair_response_groups: int = 1
    max_repair_requests_per_message: int = 3
    max_repair_answers: int = 100
    """Maximum number of answers to repair requests within ``repair_t_max_ms``, so that a stranger who requests
    everything cannot use up the rate limit that own messages need; twice as many if several request (docs/sds.md)."""

    # Missing dependencies
    sweep_in_buf_interval_ms: int = 5_000
    retrieve_frequency_ms: int = 10_000
    retrieve_backoff: float = 2.0
    retrieve_max_interval_ms: int = 600_000
    timeout_for_lost_messages_ms: int | None = None
    """``None``: one hour for a participant, at least 300 000 for an observer. 0: one hour. SDS lets a participant wait
    for ever; here a stranger's invented dependency would then hold messages for good. A message is held at most four
    times as long."""
    unproven_id_ms: int = 300_000
    """How long a message is unproven if its id has the form of a digest and cannot be recomputed from it: in this time
    the message that owns the id may arrive. 0: it is accepted at once."""
    before_observation: bool = True
    """False: messages older than the first observation of the channel also count as missing."""

    # Bounds
    lamport_tolerance_ms: int = 300_000
    """How far ahead of ``now`` a Lamport timestamp may be; further ahead it is accepted only as a successor of the
    channel's clock."""
    lamport_max_step: int = 512
    """How far a Lamport timestamp beyond the tolerance may be above the channel's clock: honest clocks follow the
    highest timestamp they have seen, and a send has up to 256 segments."""
    lamport_max_ahead_ms: int = 86_400_000
    """The maximum by which any Lamport timestamp may be ahead of ``now``, whatever the channel's clock."""
    max_history_entries: int = MAX_HISTORY_ENTRIES
    max_missing: int = 10_000
    max_missing_per_sender: int = 1_000
    max_missing_bytes: int = 4 * 1024 * 1024
    """Bytes of missing ids, hints and sender ids; the same bound applies separately to the participants that have them
    in their causal past."""
    max_refetches_per_sweep: int = 200
    max_refetches_per_sender_and_sweep: int = 100
    max_waiting: int = 3_000
    """Messages in the incoming buffer. One message may release them all, at about 3 µs each."""
    max_waiting_bytes: int = 32 * 1024 * 1024
    """Bytes of their contents, histories and ids; each id that a message waits for counts 512 more."""
    max_log_entries: int = 10_000
    max_log_bytes: int = 16 * 1024 * 1024
    """Bytes of the log's entries."""
    max_repeats: int = 2_000
    """Sends that repeat an id with equal content; they are remembered so that each is delivered once."""
    max_kept_bytes: int = 4 * 1024 * 1024
    """Original bytes of messages, kept to answer repair requests; own ones have half of the room at least."""
    max_tracked: int = 1_000
    """Messages of others whose acknowledgements are tracked; own messages are tracked while they are in the outgoing
    buffer."""
    max_participants: int = 1_000
    max_finished_sends: int = 200
    """Own sends that are delivered or have failed and are still tracked, for acknowledgements by more participants."""
    max_remembered: int = 10_000
    """Lost ids that are remembered, and as many ids from before observation."""
    max_remembered_bytes: int = 4 * 1024 * 1024

    @property
    def is_adaptive(self) -> bool:
        """Whether the waits for acknowledgements grow."""
        return self.retransmission == Retransmission.ADAPTIVE

    def acknowledgement_wait_ms(self, attempt: int) -> int:
        """How long (ms) to wait for an acknowledgement after the first dispatch (``attempt`` 0) or a
        retransmission."""
        return self.acknowledgement_timeout_ms * (2**attempt if self.is_adaptive else 1)

    def encode(self, message: SdsMessage) -> bytes:
        """Serialize a message of this channel."""
        return encode_sds_message(message, self.wire_family, self.history_layout)

    def in_family(self, family: WireFamily) -> SdsParameters:
        """Return this configuration for a channel whose peers use another implementation family.

        The filter's layout and the clock's unit are the family's. The nim family also has the values of
        :data:`NIM_SETTINGS`, unless this configuration sets others."""
        is_nim = family is WireFamily.NIM
        layout = self.filter_format
        if is_nim is (layout.family is FilterFamily.SPEC):
            layout = replace(layout, family=FilterFamily.NIM if is_nim else FilterFamily.SPEC)
        usual = SdsParameters()
        changed = replace(self, wire_family=family, filter_format=layout, clock_unit_ms=1_000 if is_nim else 1)
        if is_nim:
            unset = {name: own for name, own in NIM_SETTINGS.items() if getattr(self, name) == getattr(usual, name)}
            changed = replace(changed, **unset)  # type: ignore[arg-type]
        return changed

    def __post_init__(self) -> None:
        check_settings(self, "sds.", positive=_POSITIVE)
        if self.max_retransmissions > MAX_RETRANSMISSIONS:
            raise ConfigurationError(f"sds.max_retransmissions is above {MAX_RETRANSMISSIONS}.", "Use fewer.")
        if self.retrieve_backoff < 1:
            raise ConfigurationError("sds.retrieve_backoff is below 1.", "Waits cannot shrink: use 1 or more.")
        if self.repair_t_max_ms <= self.repair_t_min_ms:
            raise ConfigurationError("sds.repair_t_max_ms is not above sds.repair_t_min_ms.", "Raise it.")
        if self.max_log_entries < self.causal_history_size:
            cause = f"sds.causal_history_size is above sds.max_log_entries ({self.max_log_entries})."
            raise ConfigurationError(cause, "Use fewer.")
