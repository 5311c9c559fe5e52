"""One channel's part of the persistence: what is kept, when, and when a snapshot takes its place."""

from __future__ import annotations

from dataclasses import replace

from reliable_channel.channel.config import ReliableChannelConfig
from reliable_channel.channel.effects import Deliver, Dispatch
from reliable_channel.channel.events import MessageReceived
from reliable_channel.channel.inputs import encode_input
from reliable_channel.channel.machine import ChannelMachine, Outcome
from reliable_channel.channel.persistence import ChannelKey, LabelledSend, Persistence
from reliable_channel.channel.replay import replay
from reliable_channel.channel.snapshot import write_snapshot


class Journal:
    """Keeps inputs, deliveries and snapshots of ``machine``. Not safe for threads."""

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
        self._handed_over: set[str] = set()
        self._entries = 0
        self._bytes = 0
        self._snapshot_bytes = 0

    def restore(self) -> list[Deliver]:
        """Bring the machine to where the last process left it; returns the deliveries of the journal, of which some
        were handed over. Everything else was done, or is done again when the channel is opened. Raises
        ``ChangedConfigurationError`` and ``DamagedStore``."""
        stored = self._persistence.load(self._key)
        deliveries = replay(self._machine, stored, self.fingerprint)
        self._sequence = stored.sequence
        self._handed_over = set(stored.handed_over)
        self._snapshot_bytes = len(stored.snapshot or b"")
        self._entries = len(stored.journal)
        self._bytes = sum(map(len, stored.journal))
        return deliveries

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

    def labelled(self, label: str) -> LabelledSend | None:
        """The send of a label."""
        return self._persistence.labelled(self._key, label)

    def hand_over(self, deliveries: list[Deliver]) -> list[MessageReceived]:
        """Mark, then give: what is marked is never given again. The messages that are new, numbered."""
        marked: list[str] = []
        messages: list[MessageReceived] = []
        for delivery in deliveries:
            if delivery.key in self._handed_over:
                continue
            if not delivery.key:  # ephemeral: nobody keeps it
                messages.append(delivery.message)
                continue
            self._sequence += 1
            marked.append(delivery.key)
            messages.append(replace(delivery.message, sequence=self._sequence))
        if marked:
            if self._keeps:
                self._handed_over.update(marked)
            self._persistence.hand_over(self._key, marked, self._sequence)
        return messages

    @property
    def snapshot_due(self) -> bool:
        """Whether the journal is long against a snapshot: replacing it costs the whole state."""
        enough = max(self._config.max_journal_bytes, 2 * self._snapshot_bytes)
        return self._entries >= self._config.max_journal_entries or self._bytes >= enough

    def compact(self) -> None:
        """Replace the journal by a snapshot. Only when every delivery is handed over: its mark goes as well."""
        if not self._keeps:
            return
        snapshot = write_snapshot(self._machine)
        self._persistence.compact(self._key, snapshot, self.fingerprint)
        self._handed_over.clear()
        self._snapshot_bytes, self._entries, self._bytes = len(snapshot), 0, 0


def _labelled(outcome: Outcome, label: str) -> LabelledSend:
    segments = [effect for effect in outcome.effects if isinstance(effect, Dispatch)]
    return LabelledSend(label, outcome.send_id, outcome.required, tuple(one.outgoing.data for one in segments))
