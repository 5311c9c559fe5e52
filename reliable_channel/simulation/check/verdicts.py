"""Compares ``delivery_status`` with the simulation's truth: one verdict for every message of which there is evidence.

The senders of a simulation record their actions, so that messages without a trace on the wire get a verdict as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from reliable_channel.simulation.check.observed import Difference
from reliable_channel.simulation.scenario import Fault
from reliable_channel.simulation.truth import MessageOutcome, TrueMessage, Truth

PROMISE = "verdicts"
DELIVERED, MISSING, UNKNOWN, BEFORE_OBSERVATION = "delivered", "missing", "unknown", "before_observation"
WITHOUT_CAUSE = {Fault.UNDECRYPTABLE, Fault.LATE, Fault.PARITY_SAVES}
"""The injected faults whose name is not the expected cause of a loss."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A row of ``delivery_status``."""

    channel_id: str
    sds_ids: tuple[str, ...]
    verdict: str
    cause: str | None
    detail: str | None = None


def check_verdicts(truth: Truth, judged: list[Judged]) -> list[Difference]:
    """All differences. An empty list: every message has its verdict, once, every injected fault its cause, and all
    other verdicts are about messages that hostile senders sent or named.

    What one hostile sender only names, not as its own, and never sent, is not missing: it would be counted in the
    figures. Under two names it may be.

    A hostile message under an honest id may have a verdict of its own. If the honest one never arrived, the hostile one
    counts for the id; if it could not be decoded, the cause says so: the two cannot be distinguished."""
    rows: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for row in judged:
        for sds_id in row.sds_ids:
            rows[row.channel_id, sds_id].append(row)
    ids: dict[tuple[str, int], list[str]] = defaultdict(list)
    for segment in truth.segments:
        if segment.message is not None:
            ids[segment.channel_id, segment.message].append(segment.sds_id)
    forged = {(attack.channel_id, attack.sds_id) for attack in truth.attacks}
    differences: list[Difference] = []
    for message in _read_as_observed(truth):
        mine = [row for sds_id in ids[message.channel_id, message.number] for row in rows[message.channel_id, sds_id]]
        mine = list(dict.fromkeys(mine))
        what = _describe_error(message, mine)
        if what and not _is_explained(message, mine, forged):
            subject = f"message {message.number} of {message.sender}"
            differences.append(Difference(PROMISE, message.channel_id, subject, what))
    sent = {(segment.channel_id, segment.sds_id) for segment in truth.segments} | forged
    named: dict[tuple[str, str], set[str]] = defaultdict(set)
    for attack in truth.attacks:
        for sds_id in attack.names:
            named[attack.channel_id, sds_id].add(attack.sender)
    for row in judged:
        ids_of_row = {(row.channel_id, sds_id) for sds_id in row.sds_ids}
        names = {name for each in ids_of_row for name in named.get(each, ())}
        if not names and not ids_of_row & sent:
            differences.append(
                Difference(PROMISE, row.channel_id, ", ".join(row.sds_ids), "is judged and was never sent")
            )
        elif row.verdict == MISSING and len(names) == 1 and not ids_of_row & sent:
            what = "is called missing, and only one hostile sender names it"
            differences.append(Difference(PROMISE, row.channel_id, ", ".join(row.sds_ids), what))
    return differences


def _read_as_observed(truth: Truth) -> Iterator[TrueMessage]:
    """The messages, without the fault of a cut segment where that was lost on the way."""
    cut = {(s.channel_id, s.message) for s in truth.segments if s.observed_copies and s.arrived_at_ms is None}
    for message in truth.messages:
        lost = message.fault == Fault.UNDECODABLE and (message.channel_id, message.number) not in cut
        yield replace(message, fault=None) if lost else message


def _is_explained(message: TrueMessage, mine: list[Judged], forged: set[tuple[str, str]]) -> bool:
    """Whether verdicts are right except those about hostile messages under ids of an honest one."""
    touched = [row for row in mine if any((row.channel_id, sds_id) in forged for sds_id in row.sds_ids)]
    if any(_describe_error(message, [row]) is None for row in mine):
        return len(touched) >= len(mine) - 1
    if not mine or message.outcome == MessageOutcome.DELIVERED or len(touched) < len(mine):
        return False
    return all(row.verdict == DELIVERED or row.cause == Fault.UNDECODABLE for row in mine)


def _describe_error(message: TrueMessage, mine: list[Judged]) -> str | None:
    said = ", ".join(f"{row.verdict} ({row.cause})" for row in mine)
    if len(mine) != 1:
        return f"has {len(mine)} verdicts: {said}" if mine else "has no verdict"
    (row,) = mine
    if message.outcome == MessageOutcome.DELIVERED:
        return None if row.verdict == DELIVERED else f"was delivered and is called {said}"
    older = row.verdict == UNKNOWN and row.cause == BEFORE_OBSERVATION
    if row.verdict != MISSING and not older:
        return f"was not delivered and is called {said}"
    cause = None if message.fault in WITHOUT_CAUSE else message.fault
    if cause is not None and row.cause != cause:
        return f"is missing because of {cause}, and the cause is said to be {row.cause}"
    return None if row.cause is not None else "is missing, and no cause is named"
