"""Persists one channel: its journal of inputs, its record of reported events, and the snapshots that replace them.

:func:`replay` rebuilds the state machine from what is stored. :func:`apply_input` is the only place that catches a
fault of the machine on one input. Messages come from strangers, and an input on which the program fails would fail
again at every replay: it is skipped, the application receives a ``ChannelProblem`` of kind ``input_failed``, and the
channel continues with the state before the input.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.errors import ChangedConfigurationError, make_version_error
from reliable_channel.channel.events import ChannelProblem, MessageDelivered, MessageLost, MessageReceived, SendEvent
from reliable_channel.channel.machine import ChannelMachine
from reliable_channel.channel.persistence import ChannelKey, LabelledSend, Persistence, StoredChannel
from reliable_channel.channel.snapshot import restore_snapshot, write_snapshot
from reliable_channel.channel.steps import (
    EnvelopeReceived,
    Input,
    Report,
    SdsDispatch,
    SendRequested,
    StepResult,
    decode_input,
    encode_input,
)
from reliable_channel.core.errors import ReliableChannelError
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message

_log = logging.getLogger(__name__)

KIND = "input_failed"
LONGEST_DETAIL = 300


def apply_input(machine: ChannelMachine, given: Input, rewind: Callable[[], None]) -> StepResult:
    """Apply ``given`` to the machine. When the machine fails on it, call ``rewind``, which must restore the state
    before the input, and return a result with one event that names the input and is not to be journalled.

    Raises the machine's ``ReliableChannelError``. For a send, raises the fault itself: the caller has the payload."""
    try:
        return machine.apply(given)
    except (ReliableChannelError, MemoryError):
        raise  # not a fault of this input: it must not be skipped for it
    except Exception as error:
        rewind()
        if isinstance(given, SendRequested):
            raise
        problem = _describe_fault(machine, given, error)
        _log.warning("channel %r: %s", machine.channel_id, problem.detail)
        return StepResult(given, (Report(problem),), keep=False)


def is_failure(outcome: StepResult) -> bool:
    """Whether the result is that of a skipped input."""
    return any(
        isinstance(effect, Report) and isinstance(effect.event, ChannelProblem) and effect.event.kind == KIND
        for effect in outcome.effects
    )


def _describe_fault(machine: ChannelMachine, given: Input, error: Exception) -> ChannelProblem:
    """A problem with the class and place of the error, without its text, which may contain secrets."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = "".join(f" in {frame.name}, line {frame.lineno}" for frame in last)
    sender, sds_id = "", ""
    if isinstance(given, EnvelopeReceived):
        message = decode_sds_message(given.data, machine.sds_config.wire_family)
        if not isinstance(message, Malformed):
            sender, sds_id = f" of {message.sender_id!r}", message.message_id
    detail = f"{type(given).__name__}{sender}: {type(error).__name__}{where}"[:LONGEST_DETAIL]
    return ChannelProblem(channel_id=machine.channel_id, at=machine.now, kind=KIND, detail=detail, sds_id=sds_id)


def replay(machine: ChannelMachine, stored: StoredChannel, fingerprint: str) -> list[Report]:
    """Bring a fresh machine to the state in which the last process left it.

    Returns the events that were not recorded as reported, received messages without numbers, and a ``ChannelProblem``
    for each input on which the machine fails; such inputs are skipped. Raises ``ChangedConfigurationError`` and
    ``DamagedStore``."""
    if stored.journal and stored.fingerprint != fingerprint:
        before, now = _read_settings(stored.fingerprint), _read_settings(fingerprint)
        if before.get("program.version") != now["program.version"]:
            raise make_version_error(machine.channel_id, machine.sender_id)
        changed = sorted(name for name, value in now.items() if before.get(name) != value)
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
        base = write_snapshot(machine)  # or each of many faults would apply all inputs before it again
        since.clear()

    failed: list[Report] = []
    for entry in stored.journal:
        given = decode_input(entry)
        outcome = apply_input(machine, given, rewind)
        reports = [effect for effect in outcome.effects if isinstance(effect, Report)]
        if is_failure(outcome):
            failed += reports
        else:
            since.append(given)
            kept += reports
    return [report for report in kept if report.key and report.key not in stored.reported] + failed


def _read_settings(fingerprint: str) -> dict[str, str]:
    """The settings of a fingerprint (``ReliableChannelConfig.fingerprint``) by name."""
    return dict(line.split("=", 1) for line in fingerprint.split("\n") if "=" in line)


class Journal:
    """Persists the inputs, reported events and snapshots of ``machine``. Not thread-safe."""

    def __init__(
        self, machine: ChannelMachine, key: ChannelKey, config: ReliableChannelConfig, persistence: Persistence
    ) -> None:
        self._machine = machine
        self._key = key
        self._config = config
        self._persistence = persistence
        # Not part of ``Persistence``: what an application writes itself keeps the journal.
        self.keeps = bool(getattr(persistence, "keeps_journal", True))
        """Whether a later process reads this journal."""
        self.fingerprint = config.fingerprint(machine.segmentation)
        self._sequence = 0
        """The number of the last message that was reported, or is just now."""
        self._known: set[str] = set()
        """The keys of the events that the inputs of the journal make, which a replay makes again."""
        self._entries = 0
        self._bytes = 0
        self._enough = config.max_journal_bytes

    def restore(self) -> list[Report]:
        """Bring the machine to the state in which the last process left it; returns the events that it had not recorded
        as reported. All other effects were carried out, or are repeated when the channel is opened. Raises
        ``ChangedConfigurationError`` and ``DamagedStore``."""
        stored = self._persistence.load(self._key)
        kept = replay(self._machine, stored, self.fingerprint)
        self._sequence = stored.sequence
        self._known = set(stored.reported) | {report.key for report in kept}
        self._begin_journal(len(stored.snapshot or b""))
        self._entries = len(stored.journal)
        self._bytes = sum(map(len, stored.journal))
        return [_mark_redelivered(report) for report in kept]

    def commit(self, outcomes: list[StepResult], label: str | None = None) -> None:
        """Append the inputs of one step in one transaction. ``label`` names the send among them."""
        labelled = _label_send(outcomes[0], label) if label is not None else None
        effects = (effect for outcome in outcomes for effect in outcome.effects)
        delivered = [
            effect.event.request_id
            for effect in effects
            if isinstance(effect, Report) and isinstance(effect.event, MessageDelivered)
        ]
        if not self.keeps and labelled is None and not delivered:
            return
        entries = [encode_input(outcome.given) for outcome in outcomes if outcome.keep]
        if entries:
            self._persistence.append(self._key, entries, self.fingerprint, labelled, delivered)
            self._entries += len(entries)
            self._bytes += sum(map(len, entries))

    def rewind(self) -> None:
        """Bring the machine back to the state after the last stored input. Without a stored journal (``historyBackend:
        memory``) nothing can be restored, and the state stays as it is."""
        if not self.keeps:
            return
        self._machine.begin()
        replay(self._machine, self._persistence.load(self._key), self.fingerprint)

    def forget_label(self, label: str) -> None:
        """Forget a label and the segments that are kept for it."""
        self._persistence.forget_label(self._key, label)

    def find_send(self, label: str) -> LabelledSend | None:
        """The send of a label."""
        return self._persistence.find_send(self._key, label)

    def is_new(self, report: Report) -> bool:
        """Whether a report was not made before."""
        key = report.key
        if key and key in self._known:
            return False
        if key and self.keeps:
            self._known.add(key)
        return True

    def number(self, report: Report) -> Report:
        """A report that is made now, of a received message with its number. It has the same one again where the process
        dies before :meth:`mark_reported`."""
        if not (report.key and isinstance(report.event, MessageReceived)):
            return report
        self._sequence += 1
        return replace(report, event=replace(report.event, sequence=self._sequence))

    def mark_reported(self, reported: Sequence[Report]) -> None:
        """Record that these reports were made to the application, in order."""
        keys = [key for report in reported if (key := report.key)]
        if keys and (self.keeps or any(isinstance(report.event, MessageReceived) for report in reported)):
            self._persistence.mark_reported(self._key, keys, self._sequence)

    def snapshot_due(self) -> bool:
        """Whether the journal has grown long enough, compared with the snapshot that would replace it. A snapshot costs
        the whole state, unacknowledged messages included."""
        if self._entries >= self._config.max_journal_entries:
            return True
        if self._bytes < self._enough:
            return False
        # Counting unacknowledged bytes visits every one of them, so it is repeated only at twice the size.
        self._enough = max(self._config.max_journal_bytes, 2 * self._machine.sds.count_unacknowledged_bytes())
        return self._bytes >= self._enough

    def compact(self, unreported: Sequence[Report]) -> None:
        """Replace the journal and the record of reported events by a snapshot that contains the unreported ones."""
        if not self.keeps:
            return
        snapshot = write_snapshot(self._machine, unreported)
        self._persistence.compact(self._key, snapshot, self.fingerprint)
        if self._machine.store is not None:
            self._machine.store.keep(self._machine.inbox.reassembler.list_parked())
        self._known = {key for report in unreported if (key := report.key)}
        self._begin_journal(len(snapshot))

    def _begin_journal(self, size: int) -> None:
        self._entries = self._bytes = 0
        self._enough = max(self._config.max_journal_bytes, 2 * size)


def _mark_redelivered(report: Report) -> Report:
    event = report.event
    if isinstance(event, MessageReceived | SendEvent | MessageLost):
        report = replace(report, event=replace(event, redelivered=True))
    return report


def _label_send(outcome: StepResult, label: str) -> LabelledSend:
    segments = [effect for effect in outcome.effects if isinstance(effect, SdsDispatch)]
    return LabelledSend(label, outcome.send_id, outcome.required, tuple(one.outgoing.data for one in segments))
