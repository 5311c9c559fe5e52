"""Builds the causal graph around a message: the messages it names, those that they name, and those that name it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from reliable_channel.analysis.report.investigate import MessageFacts
from reliable_channel.analysis.report.source import TableWindow

MOST_NODES = 200


class Kind(StrEnum):
    """The kind of a node in the graph, in words."""

    OWN = "this message"
    OWN_ABSENT = "this message, did not arrive"
    ARRIVED = "arrived"
    ABSENT = "did not arrive"


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An SDS message of the causal graph. ``generation``: steps from the requested message, negative is the past;
    ``known``: it arrived here or was rebuilt; ``own``: it belongs to the message itself."""

    sds_id: str
    sender_id: str | None
    lamport_timestamp: int | None
    generation: int
    known: bool
    own: bool

    @property
    def kind(self) -> Kind:
        """The kind in words."""
        if self.own:
            return Kind.OWN if self.known else Kind.OWN_ABSENT
        return Kind.ARRIVED if self.known else Kind.ABSENT


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes, and edges (later sds_id, earlier sds_id): the later names the earlier. ``cut`` when there was more."""

    nodes: tuple[GraphNode, ...]
    edges: tuple[tuple[str, str], ...]
    cut: bool


def graph(source: TableWindow, message: MessageFacts, generations: int = 2, most: int = MOST_NODES) -> Graph:
    """The SDS messages that ``message`` names, those that they name, and those that name it, up to ``generations``
    steps in both directions; at most ``most``, the nearest ones."""
    edges, attributes = _edges(source, message)
    past: dict[str, list[str]] = {}
    future: dict[str, list[str]] = {}
    for later, earlier in edges:
        past.setdefault(later, []).append(earlier)
        future.setdefault(earlier, []).append(later)
    generation = dict.fromkeys(message.sds_ids, 0)
    cut = _walk(generation, past, generations, -1, most) | _walk(generation, future, generations, 1, most)
    nodes = [
        GraphNode(sds_id, *attributes.get(sds_id, (None, None)), step, sds_id in attributes, sds_id in message.sds_ids)
        for sds_id, step in generation.items()
    ]
    kept = [(later, earlier) for later, earlier in edges if later in generation and earlier in generation]
    nodes.sort(key=lambda node: (node.generation, node.lamport_timestamp or 0, node.sds_id))
    return Graph(tuple(nodes), tuple(sorted(set(kept))), cut)


def _walk(
    generation: dict[str, int], next_of: dict[str, list[str]], generations: int, direction: int, most: int
) -> bool:
    """Add the messages reached to ``generation``; returns whether any was left out because of ``most``."""
    border: Iterable[str] = list(generation) if direction < 0 else [i for i, step in generation.items() if step == 0]
    for step in range(1, generations + 1):
        reached = sorted({other for sds_id in border for other in next_of.get(sds_id, ())} - set(generation))
        room = max(0, most - len(generation))
        generation.update(dict.fromkeys(reached[:room], direction * step))
        if len(reached) > room:
            return True
        border = reached
    return False


def _edges(
    source: TableWindow, message: MessageFacts
) -> tuple[list[tuple[str, str]], dict[str, tuple[str | None, int | None]]]:
    """Which message names which in the message's channel, and (sender, Lamport timestamp) of every SDS message that
    arrived."""
    here, values = message.channel.where(), message.channel.parameters
    rows = source.select(
        f"""
        SELECT sds_id, sender_id, lamport_timestamp,
               coalesce(list_filter(list_transform(causal_history, lambda entry: entry.sds_id),
                                    lambda id: id IS NOT NULL), []) AS history
        FROM sds_messages WHERE sds_id IS NOT NULL AND {here}
        QUALIFY row_number() OVER (PARTITION BY sds_id ORDER BY event_time, kafka_offset) = 1
        """,  # noqa: S608 - names of columns; values are bound
        values,
    )
    rebuilt = source.select(
        f"""
        SELECT sds_id, any_value(sender_id) AS sender_id, any_value(lamport_timestamp) AS lamport_timestamp
        FROM deliveries WHERE repaired_by IS NOT NULL AND {here} GROUP BY sds_id
        """,  # noqa: S608 - names of columns; values are bound
        values,
    )
    attributes = {row["sds_id"]: (row["sender_id"], row["lamport_timestamp"]) for row in rebuilt + rows}
    return [(row["sds_id"], earlier) for row in rows for earlier in row["history"]], attributes
