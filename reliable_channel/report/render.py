"""The delivery report on a terminal: per channel what became of the messages, every one that is missing by name, and
whether the tables agree with the truth. Strings from the network are shown as text, never as markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reliable_channel.report.difference import Difference
from reliable_channel.report.observed import Observed
from reliable_channel.sds import Evidence
from reliable_channel.simulation.truth import Outcome, TrueMessage, Truth

MOST_DIFFERENCES = 40
"""Lines of differences that are printed; missing messages are all named."""


def render(console: Console, truth: Truth, observed: Observed, differences: Sequence[Difference]) -> None:
    """Print the whole report."""
    console.print(_channels(truth))
    _missing(console, truth)
    if truth.attacks:
        console.print(_attacks(truth, observed))
    _facts(console, truth, observed)
    _verdict(console, differences)


def _channels(truth: Truth) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.title, table.title_justify = "What became of the messages", "left"
    table.add_column("channel")
    for name in ("sent", "delivered", "by parity", "resent", "incomplete", "named", "no trace"):
        table.add_column(name, justify="right")
    for channel in sorted({m.channel_id for m in truth.messages}):
        sent = [m for m in truth.messages if m.channel_id == channel]
        outcomes = Counter(m.outcome for m in sent)
        table.add_row(
            Text(channel),
            str(len(sent)),
            str(outcomes[Outcome.DELIVERED]),
            str(sum(m.by_parity for m in sent)),
            str(sum(m.by_retransmission for m in sent)),
            str(outcomes[Outcome.INCOMPLETE]),
            str(outcomes[Outcome.REFERENCED]),
            str(outcomes[Outcome.NO_TRACE]),
        )
    return table


def _attacks(truth: Truth, observed: Observed) -> Table:
    """What hostile senders sent, and how many of their messages are delivered under the names they claim."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.title, table.title_justify = "What hostile senders sent", "left"
    table.add_column("attack")
    for name in ("messages", "delivered as what they are", "quarantined"):
        table.add_column(name, justify="right")
    delivered = {(row.channel_id, row.first_sds_id, row.sender, row.payload) for row in observed.messages}
    quarantined = {(row.topic, row.partition, row.offset) for row in observed.quarantine}
    for attack in sorted({a.attack for a in truth.attacks}):
        sent = [a for a in truth.attacks if a.attack == attack]
        table.add_row(
            Text(attack.replace("_", " ")),
            str(len(sent)),
            str(len({(a.channel_id, a.sds_id, a.sender, a.payload) for a in sent} & delivered)),
            str(sum((a.topic, a.partition, a.offset) in quarantined for a in sent)),
        )
    return table


def _missing(console: Console, truth: Truth) -> None:
    """Name every message that was not delivered, with what is missing of it."""
    missing = [m for m in truth.messages if m.outcome != Outcome.DELIVERED]
    console.print(f"\n{len(missing)} messages could not be delivered:", style="bold")
    for message in missing:
        console.print(Text(f"  {describe(message)}"), soft_wrap=True)


def describe(message: TrueMessage) -> str:
    """One line: which message, and what is missing of it."""
    name = f"{message.channel_id} #{message.number} from {message.sender}, {len(message.payload)} bytes"
    injected = f" [injected: {message.fault}]" if message.fault else ""
    if message.outcome == Outcome.INCOMPLETE and message.arrived_data:
        parity = f" and {len(message.arrived_parity)} of {message.parity_count} parity" if message.parity_count else ""
        held = f"has {len(message.arrived_data)} of {message.data_count} segments{parity}"
        what = f"{held}; missing {', '.join(map(str, message.missing_data))}"
        return f"{name}: {what}{injected}" if message.missing_data else f"{name}: its hash does not match{injected}"
    if message.outcome == Outcome.INCOMPLETE:
        return f"{name}: only parity arrived, {len(message.arrived_parity)} of {message.parity_count}{injected}"
    if message.outcome == Outcome.REFERENCED:
        return f"{name}: nothing arrived; others name it ({message.last_sds_id[:12]}…){injected}"
    kind = ", ephemeral" if message.ephemeral else ""
    return f"{name}{kind}: left no trace on the wire, known from the truth only{injected}"


def _facts(console: Console, truth: Truth, observed: Observed) -> None:
    reasons = Counter(row.reason for row in observed.quarantine)
    certain = sum(ack.certain for ack in observed.acks)
    implied = sum(ack.evidence == Evidence.IMPLIED for ack in observed.acks)
    repaired = sum(segment.repaired for segment in observed.segments)
    late = sum(segment.late for segment in observed.segments)
    console.print(
        f"\n{observed.envelopes} envelopes; {len(observed.segments)} segments delivered in causal order, {repaired} of "
        f"them rebuilt, {late} late; {len(observed.acks)} acknowledgements, {certain} certain, {implied} implied; "
        f"{len(observed.lost)} lost dependencies"
    )
    found = ", ".join(f"{reason} {count}" for reason, count in sorted(reasons.items()))
    console.print(Text(f"{len(observed.quarantine)} of {len(truth.bad)} bad records quarantined: {found}"))


def _verdict(console: Console, differences: Sequence[Difference]) -> None:
    if not differences:
        console.print("\nThe tables match the truth exactly.", style="bold green")
        return
    console.print(f"\nThe tables differ from the truth in {len(differences)} places:", style="bold red")
    for difference in differences[:MOST_DIFFERENCES]:
        console.print(Text(f"  {difference}"), soft_wrap=True)
    if len(differences) > MOST_DIFFERENCES:
        console.print(f"  … and {len(differences) - MOST_DIFFERENCES} more")
