"""From what is kept of a channel back to its state."""

from __future__ import annotations

from typing import Any

from reliable_channel.channel.effects import Deliver, Emit
from reliable_channel.channel.errors import ChangedConfigurationError
from reliable_channel.channel.guarded import applied, is_failure
from reliable_channel.channel.inputs import Input, decode_input
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.outbox import Telling, telling_of
from reliable_channel.channel.persistence import StoredChannel
from reliable_channel.channel.sends import SendState
from reliable_channel.channel.snapshot import restore_snapshot, write_snapshot


def replay(machine: ChannelMachine, stored: StoredChannel, fingerprint: str) -> list[Telling]:
    """Bring a fresh machine to where the last process left it; returns what is kept for the application and no note
    says was told, its messages not numbered, and a problem for each input on which the machine fails: it is left out.
    Raises ``ChangedConfigurationError`` and ``DamagedStore``."""
    if stored.journal and stored.fingerprint != fingerprint:
        differing = set(stored.fingerprint.split("\n")) ^ set(fingerprint.split("\n"))
        changed = sorted({line.split("=")[0] for line in differing})
        raise ChangedConfigurationError(
            f"The process before this one did not stop cleanly, and since then {', '.join(changed)} changed.",
            "Open the channel once with the old configuration and close it, then change it.",
        )
    kept = restore_snapshot(machine, stored.snapshot) if stored.snapshot is not None else []
    base, since = stored.snapshot, list[Input]()

    def rewind() -> None:
        nonlocal base
        machine.begin()
        if base is not None:
            restore_snapshot(machine, base)
        for good in since:
            machine.apply(good)
        base = write_snapshot(machine)
        since.clear()

    failed: list[Telling] = []
    for entry in stored.journal:
        given = decode_input(entry)
        outcome = applied(machine, given, rewind)
        tellings = [telling_of(effect) for effect in outcome.effects if isinstance(effect, Deliver | Emit)]
        if is_failure(outcome):
            failed += tellings
        else:
            since.append(given)
            kept += tellings
    return [telling for telling in kept if telling.mark and telling.mark not in stored.told] + failed


def summary(machine: ChannelMachine) -> dict[str, Any]:
    """A channel's state in plain numbers, for people and ``--json``; never payloads."""
    states = [send.state for send in machine.sends]
    return {
        "channel_id": machine.channel_id,
        "content_topic": machine.content_topic,
        "sender_id": machine.sender_id,
        "sends": {state.value: states.count(state) for state in SendState},
        "unacknowledged_segments": len(machine.sds.unacknowledged()),
        "missing_segments": len(machine.sds.missing_ids()),
        "lamport_clock": machine.sds.clock,
    }
