"""Implements Scalable Data Sync (LIP-109, docs/spec/sds.md): messages and times in, messages and events out, without
clock, randomness, I/O or Spark.

Names are loaded on first use: every command reads the settings, which are in ``config``, and few commands need more.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reliable_channel.core.sds.channel import SdsChannel
    from reliable_channel.core.sds.config import Retransmission, SdsParameters, Tracking, deterministic_jitter
    from reliable_channel.core.sds.events import (
        Acknowledged,
        Buffered,
        Conflict,
        Delivered,
        DeliveryError,
        DependencyBeforeObservation,
        DependencyFound,
        DependencyLost,
        DuplicateSeen,
        EphemeralReceived,
        Evicted,
        Evidence,
        FilterRolledOver,
        Memory,
        MessageRefused,
        MissingDependency,
        Outgoing,
        OutgoingReason,
        PossiblyAcknowledged,
        RecipientAcknowledged,
        RefetchDue,
        RefusalReason,
        RepairCancelled,
        RepairRequested,
        RepairRequestSeen,
        RepairScheduled,
        RepairSent,
        SaturatedFilter,
        SdsEvent,
        SdsStep,
        SegmentAcknowledged,
        SendDelivered,
        TrackingEnded,
    )

__all__ = [
    "Acknowledged",
    "Buffered",
    "Conflict",
    "Delivered",
    "DeliveryError",
    "DependencyBeforeObservation",
    "DependencyFound",
    "DependencyLost",
    "DuplicateSeen",
    "EphemeralReceived",
    "Evicted",
    "Evidence",
    "FilterRolledOver",
    "Memory",
    "MessageRefused",
    "MissingDependency",
    "Outgoing",
    "OutgoingReason",
    "PossiblyAcknowledged",
    "RecipientAcknowledged",
    "RefetchDue",
    "RefusalReason",
    "RepairCancelled",
    "RepairRequestSeen",
    "RepairRequested",
    "RepairScheduled",
    "RepairSent",
    "Retransmission",
    "SaturatedFilter",
    "SdsChannel",
    "SdsEvent",
    "SdsParameters",
    "SdsStep",
    "SegmentAcknowledged",
    "SendDelivered",
    "Tracking",
    "TrackingEnded",
    "deterministic_jitter",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from reliable_channel.core.sds import channel, config, events

    modules = (config, events, channel)
    return globals().setdefault(name, next(getattr(one, name) for one in modules if hasattr(one, name)))
