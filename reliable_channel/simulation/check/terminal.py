"""Prints the demo's report on one screen of a terminal: loss by channel, causes, three losses, and whether the tables
agree with the truth. Strings from the network are shown as text, never as markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from reliable_channel.analysis import text
from reliable_channel.analysis.command_name import command_name
from reliable_channel.simulation.check.observed import Difference, Observed
from reliable_channel.simulation.check.verdicts import Judged
from reliable_channel.simulation.truth import MessageOutcome, TrueMessage, Truth

MOST_DIFFERENCES = 20
"""Lines of differences that are printed."""
EXAMPLES = 3
BAR = 24
"""Characters of the longest bar."""


def render(
    console: Console,
    truth: Truth,
    observed: Observed,
    judged: Sequence[Judged],
    differences: Sequence[Difference],
    data_dir: str,
) -> None:
    """Print the whole report. ``judged`` are the rows of ``delivery_status``, ``data_dir`` is where the tables are."""
    missing = [m for m in truth.messages if m.outcome != MessageOutcome.DELIVERED]
    verdicts = {(row.channel_id, sds_id): row for row in judged for sds_id in row.sds_ids}
    causes = [(message, verdicts.get((message.channel_id, message.first_sds_id))) for message in missing]
    console.print(_make_channels_table(truth))
    if missing:
        console.print(_make_causes_table(causes))
        _print_examples(console, causes)
        console.print(
            f"All of them: {command_name()} report --missing --tables {show_path(data_dir)}\n", soft_wrap=True
        )
    if truth.attacks:
        console.print(_make_attacks_table(truth, observed))
    _print_facts(console, truth, observed)
    _print_agreement(console, differences)


def next_steps(data_dir: str) -> str:
    """Three commands to continue with."""
    name, tables = command_name(), show_path(data_dir)
    lines = {
        "report": "what was delivered, what is missing and why (--html FILE: with charts)",
        "dashboard": "the same as pages in a browser",
        "sql": "your own questions; docs/questions.md has examples",
    }
    width = max(map(len, lines))
    return "\n".join(["", *(f"  {name} {c:{width}} --tables {tables}   # {what}" for c, what in lines.items())])


def show_path(data_dir: str) -> str:
    """The directory relative to the current one."""
    directory = Path(data_dir)
    return str(directory.relative_to(Path.cwd())) if directory.is_relative_to(Path.cwd()) else data_dir


def _make_channels_table(truth: Truth) -> Table:
    sent = Counter(m.channel_id for m in truth.messages)
    by = {outcome: Counter(m.channel_id for m in truth.messages if m.outcome == outcome) for outcome in MessageOutcome}
    gone = {channel: sent[channel] - by[MessageOutcome.DELIVERED][channel] for channel in sent}
    highest = max((gone[channel] / sent[channel] for channel in sent), default=0)
    total, lost = sum(sent.values()), sum(gone.values())
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True, title_justify="left", title_style="bold")
    table.title = f"{lost} of {total} messages are missing ({text.percent(lost / total if total else 0)})"
    table.add_column("channel")
    for name in ("sent", "delivered", "missing", "loss"):
        table.add_column(name, justify="right")
    table.add_column("")
    for channel in sorted(sent, key=lambda name: (-gone[name] / sent[name], name)):
        loss = gone[channel] / sent[channel]
        row = (sent[channel], by[MessageOutcome.DELIVERED][channel], gone[channel], text.percent(loss))
        table.add_row(Text(channel), *map(str, row), Text(bar(loss, highest), style="red"))
    return table


def bar(value: float, highest: float) -> str:
    """A bar of at most :data:`BAR` characters; a value above zero is always visible."""
    return "█" * (max(1, round(BAR * value / highest)) if value else 0)


def _make_causes_table(causes: Sequence[tuple[TrueMessage, Judged | None]]) -> Table:
    counted = Counter(_name_cause(row) for _, row in causes)
    table = Table(box=None, pad_edge=False, show_header=False, title_justify="left", title_style="bold")
    table.title = "Why"
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for cause, messages in sorted(counted.items(), key=lambda found: (-found[1], found[0])):
        table.add_row(Text(cause), str(messages), Text(bar(messages, max(counted.values())), style="red"))
    return table


def _name_cause(row: Judged | None) -> str:
    if row is None:
        return "not judged"
    return text.words(row.cause) if row.cause is not None else "cause unknown"


def _print_examples(console: Console, causes: Sequence[tuple[TrueMessage, Judged | None]]) -> None:
    """One loss of each of the most frequent causes."""
    counted = Counter(_name_cause(row) for _, row in causes)
    order = sorted(counted, key=lambda cause: (-counted[cause], cause))
    first = {cause: next(pair for pair in causes if _name_cause(pair[1]) == cause) for cause in order}
    console.print(Text("\nSuch as", style="bold"))
    for message, row in [*first.values()][:EXAMPLES]:
        detail = f" ({row.detail})" if row is not None and row.detail else ""
        console.print(Text(f"  {describe(message)}: {_name_cause(row)}{detail}"), soft_wrap=True)


def describe(message: TrueMessage) -> str:
    """Which message: its channel, number, sender and size."""
    kind = ", ephemeral" if message.ephemeral else ""
    return f"{message.channel_id} #{message.number} from {message.sender}, {len(message.payload)} bytes{kind}"


def _make_attacks_table(truth: Truth, observed: Observed) -> Table:
    """The hostile messages sent, and how many of them are delivered under the names they claim."""
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


def _print_facts(console: Console, truth: Truth, observed: Observed) -> None:
    repaired = sum(segment.repaired for segment in observed.segments)
    console.print(
        f"{observed.envelopes} envelopes, {len(observed.segments)} segments in causal order ({repaired} repaired by "
        f"parity), {len(observed.acks)} acknowledgements, {len(observed.quarantine)} of {len(truth.bad)} bad records "
        "quarantined",
        soft_wrap=True,
    )


def _print_agreement(console: Console, differences: Sequence[Difference]) -> None:
    if not differences:
        console.print("The tables match the truth exactly.", style="bold green")
        return
    console.print(f"The tables differ from the truth in {len(differences)} places:", style="bold red")
    for difference in differences[:MOST_DIFFERENCES]:
        console.print(Text(f"  {difference}"), soft_wrap=True)
    if len(differences) > MOST_DIFFERENCES:
        console.print(f"  … and {len(differences) - MOST_DIFFERENCES} more")
