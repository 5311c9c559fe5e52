"""One channel's part of the persistence: what is kept, when, and when a snapshot takes its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.effects import Deliver, Dispatch, Emit
from reliable_channel.channel.events import MessageReceived, SendEvent
from reliable_channel.channel.inputs import encode_input
from reliable_channel.channel.machine import ChannelMachine, Outcome
from reliable_channel.channel.outbox import Telling, telling_of
from reliable_channel.channel.persistence import ChannelKey, LabelledSend, Persistence
from reliable_channel.channel.replay import replay
from reliable_channel.channel.snapshot import write_snapshot


class Journal:
    """Keeps inputs, what was told, and snapshots of ``machine``. Not safe for threads."""

    def __init__(
        self, machine: ChannelMachine, key: ChannelKey, config: ReliableChannelConfig, persistence: Persistence
    ) -> None:
        self._machine = machine
        self._key = key
        self._config = config
        self._persistence = persistence
        self._keeps = bool(getattr(persistence, "keeps_journal", True))
        self.fingerprint = config.fingerprint(machine.segmentation)
        self._sequence = 0
        self._numbered = 0
        self._known: set[str] = set()
        self._entries = 0
        self._bytes = 0
        self._enough = config.max_journal_bytes

    def restore(self) -> list[Telling]:
        """Bring the machine to where the last process left it; returns what it had kept and not noted as told.
        Everything else was done, or is done again when the channel is opened. Raises ``ChangedConfigurationError`` and
        ``DamagedStore``."""
        stored = self._persistence.load(self._key)
        kept = replay(self._machine, stored, self.fingerprint)
        self._sequence = self._numbered = stored.sequence
        self._known = set(stored.told) | {telling.mark for telling in kept}
        self._after_snapshot(len(stored.snapshot or b""))
        self._entries = len(stored.journal)
        self._bytes = sum(map(len, stored.journal))
        return [self._numbered_one(telling, redelivered=True) for telling in kept]

    def commit(self, outcomes: list[Outcome], label: str | None = None) -> None:
        """Keep the inputs of one step, in one transaction; ``label`` names the send among them."""
        labelled = _labelled(outcomes[0], label) if label is not None else None
        if not self._keeps and labelled is None:
            return
        entries = [encode_input(outcome.given) for outcome in outcomes if outcome.keep]
        if entries:
            self._persistence.append(self._key, entries, self.fingerprint, labelled)
            self._entries += len(entries)
            self._bytes += sum(map(len, entries))

    def rewind(self) -> None:
        """Bring the machine back to the state after the last input that was kept. Without a kept journal
        (``historyBackend: memory``) there is nothing to go back to, and the state stays as it is."""
        if not self._keeps:
            return
        self._machine.begin()
        replay(self._machine, self._persistence.load(self._key), self.fingerprint)

    def forget_label(self, label: str) -> None:
        """Forget a label and the segments that are kept for it."""
        self._persistence.forget_label(self._key, label)

    def labelled(self, label: str) -> LabelledSend | None:
        """The send of a label."""
        return self._persistence.labelled(self._key, label)

    def telling(self, effect: Deliver | Emit) -> Telling | None:
        """What an effect gives the application to know, its messages numbered; ``None`` for what was given before."""
        if effect.mark and effect.mark in self._known:
            return None
        if effect.mark and self._keeps:
            self._known.add(effect.mark)
        return self._numbered_one(telling_of(effect))

    def _numbered_one(self, telling: Telling, *, redelivered: bool = False) -> Telling:
        event = telling.event
        if isinstance(event, MessageReceived) and telling.mark:
            self._numbered += 1
            event = replace(event, sequence=self._numbered, redelivered=redelivered)
        elif isinstance(event, SendEvent) and redelivered:
            event = replace(event, redelivered=True)
        return Telling(event, telling.mark)

    def told(self, tellings: Sequence[Telling]) -> None:
        """Note that the application was told these, in order."""
        marks = [telling.mark for telling in tellings if telling.mark]
        numbers = [telling.event.sequence for telling in tellings if isinstance(telling.event, MessageReceived)]
        self._sequence = max((self._sequence, *numbers))
        if marks and (self._keeps or numbers):
            self._persistence.told(self._key, marks, self._sequence)

    @property
    def keeps(self) -> bool:
        """Whether a later process reads this journal."""
        return self._keeps

    def snapshot_due(self) -> bool:
        """Whether the journal is long against the snapshot that would replace it: that costs the whole state, and what
        nobody has acknowledged stays in it."""
        if self._entries >= self._config.max_journal_entries:
            return True
        if self._bytes < self._enough:
            return False
        # Twice what waits there now is the next moment to look: the look goes through all of it.
        self._enough = max(self._config.max_journal_bytes, 2 * self._machine.sds.unacknowledged_bytes())
        return self._bytes >= self._enough

    def compact(self, untold: Sequence[Telling]) -> None:
        """Replace the journal by a snapshot, which takes along what is still to be told; the notes go as well."""
        if not self._keeps:
            return
        snapshot = write_snapshot(self._machine, untold)
        self._persistence.compact(self._key, snapshot, self.fingerprint)
        self._known = {telling.mark for telling in untold if telling.mark}
        self._after_snapshot(len(snapshot))

    def _after_snapshot(self, size: int) -> None:
        self._entries = self._bytes = 0
        self._enough = max(self._config.max_journal_bytes, 2 * size)


def _labelled(outcome: Outcome, label: str) -> LabelledSend:
    segments = [effect for effect in outcome.effects if isinstance(effect, Dispatch)]
    return LabelledSend(label, outcome.send_id, outcome.required, tuple(one.outgoing.data for one in segments))
