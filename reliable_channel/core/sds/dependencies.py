"""Classifies each entry of a message's causal history as met, held, missing, lost, or before observation."""

from __future__ import annotations

from dataclasses import dataclass, field

from reliable_channel.core.sds.state import ChannelState
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage


@dataclass(slots=True)
class Dependencies:
    """A message's unmet dependencies, by kind."""

    unmet: dict[str, None] = field(default_factory=dict)
    """Held or missing: the message waits for these."""
    missing: list[str] = field(default_factory=list)
    new: list[HistoryEntry] = field(default_factory=list)
    """Missing and named for the first time."""
    lost: list[str] = field(default_factory=list)
    before_observation: list[str] = field(default_factory=list)
    new_before_observation: list[str] = field(default_factory=list)
    not_causal: list[str] = field(default_factory=list)
    """The message itself, or a held message that is not earlier: an honest sender's history contains neither."""


NONE = Dependencies()
"""Shared by all messages whose dependencies are met; must never be changed."""


def review_dependencies(
    state: ChannelState, message: SdsMessage, lamport: int, now: int, *, first: bool = False, unproven: bool = False
) -> Dependencies:
    """Classify the entries of a message's causal history; a dependency is met when its id is in the log. ``first``: the
    message is the first one observed, so everything it names is older than the observation. ``unproven``: its own id
    could not be recomputed."""
    in_log = state.log.holds
    for entry in message.causal_history:
        if not in_log(entry.message_id):
            break
    else:
        return NONE
    dependencies = Dependencies()
    config = state.config
    state.observe(lamport, now)
    is_old = config.before_observation and (first or lamport <= state.observed_since)
    follows_known = False
    for dependency in dict.fromkeys(entry.message_id for entry in message.causal_history):
        if not in_log(dependency):
            # Histories are in log order. What follows a message that is here may have been sent since this participant
            # began, by a sender whose rate limit held it back, so it is asked for; but nothing so old is waited for.
            asks = is_old and follows_known
            # Who uses a scheme that is not known here names ids of that scheme, which stay unproven for minutes.
            met = unproven and state.unproven.meets(dependency, lamport)
            _classify(state, message, lamport, dependency, is_old, asks, not met, dependencies)
        elif state.participant_id is not None:
            follows_known = True
    if dependencies.missing:
        known = state.incoming.missing
        entries = {entry.message_id: entry for entry in reversed(message.causal_history)}
        dependencies.new = [entries[dependency] for dependency in dependencies.missing if dependency not in known]
    return dependencies


def _classify(
    state: ChannelState,
    message: SdsMessage,
    lamport: int,
    dependency: str,
    is_old: bool,
    asks: bool,
    waits: bool,
    dependencies: Dependencies,
) -> None:
    """Add an id that is not in the log to its kind of ``dependencies``. ``is_old``: an unknown one is from before
    observation; ``asks``: it is asked for all the same; ``waits``: the message waits for a missing one."""
    incoming = state.incoming
    held = incoming.waiting.get(dependency)
    # Forged messages that name each other would wait for ever (docs/sds.md, *Decisions*).
    if dependency == message.message_id or (held is not None and held.lamport >= lamport):
        dependencies.not_causal.append(dependency)
    elif held is not None:
        dependencies.unmet[dependency] = None
    elif dependency in incoming.syncs:  # nim-sds peers name them, and nobody delivers them
        return
    elif incoming.is_lost(dependency, message.sender_id):
        dependencies.lost.append(dependency)
    else:
        missing, before = dependency in incoming.missing, dependency in incoming.before_observation
        if (is_old and before) if missing else (is_old or before):
            dependencies.before_observation.append(dependency)
            if not before:
                dependencies.new_before_observation.append(dependency)
            if not missing and not asks:
                return
        elif waits:
            dependencies.unmet[dependency] = None
        dependencies.missing.append(dependency)
