"""Builds the causal graph around a message: the messages it names, those that they name, and those that name it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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
    messages = _Messages(source, message)
    generation = dict.fromkeys(message.sds_ids, 0)
    cut = _walk(generation, messages.list_named, generations, -1, most)
    cut |= _walk(generation, messages.list_naming, generations, 1, most)
    attributes, edges = messages.read(generation)
    nodes = [
        GraphNode(sds_id, *attributes.get(sds_id, (None, None)), step, sds_id in attributes, sds_id in message.sds_ids)
        for sds_id, step in generation.items()
    ]
    kept = [(later, earlier) for later, earlier in edges if later in generation and earlier in generation]
    nodes.sort(key=lambda node: (node.generation, node.lamport_timestamp or 0, node.sds_id))
    return Graph(tuple(nodes), tuple(sorted(set(kept))), cut)


def _walk(
    generation: dict[str, int],
    list_next: Callable[[Sequence[str]], set[str]],
    generations: int,
    direction: int,
    most: int,
) -> bool:
    """Add the messages reached to ``generation``; returns whether any was left out because of ``most``."""
    border = list(generation) if direction < 0 else [i for i, step in generation.items() if step == 0]
    for step in range(1, generations + 1):
        reached = sorted(list_next(border) - set(generation))
        room = max(0, most - len(generation))
        generation.update(dict.fromkeys(reached[:room], direction * step))
        if len(reached) > room:
            return True
        border = reached
    return False


class _Messages:
    """The SDS messages in the channel of a message, whatever the window: what is outside of it did arrive. Of copies
    the first one counts. Only messages that are asked for become Python objects: a channel may have a million, each
    with a history."""

    def __init__(self, source: TableWindow, message: MessageFacts) -> None:
        self._lake = source.snapshot
        self._here, self._values = message.channel.where(), message.channel.parameters

    def list_named(self, border: Sequence[str]) -> set[str]:
        """The ids that messages of ``border`` name."""
        return {earlier for row in self._select(border, "FROM wanted") for earlier in row["history"]}

    def list_naming(self, border: Sequence[str]) -> set[str]:
        """The ids of the messages that name one of ``border``."""
        naming = f"SELECT sds_id FROM messages WHERE list_has_any({_HISTORY}, $ids::VARCHAR[])"  # noqa: S608 - our own
        return {row["sds_id"] for row in self._select(border, naming) if not {*border}.isdisjoint(row["history"])}

    def read(self, ids: Collection[str]) -> tuple[dict[str, tuple[str | None, int | None]], list[tuple[str, str]]]:
        """(Sender, Lamport timestamp) of those of ``ids`` that arrived or were rebuilt, and who of them names whom."""
        rebuilt = self._lake.select(
            f"""
            SELECT sds_id, any_value(sender_id) AS sender_id, any_value(lamport_timestamp) AS lamport_timestamp
            FROM deliveries WHERE repaired_by IS NOT NULL AND list_contains($ids, sds_id) AND {self._here}
            GROUP BY sds_id
            """,  # noqa: S608 - names of columns; values are bound
            {"ids": [*ids], **self._values},
        )
        rows = self._select([*ids], "FROM wanted")
        attributes = {row["sds_id"]: (row["sender_id"], row["lamport_timestamp"]) for row in rebuilt + rows}
        return attributes, [(row["sds_id"], earlier) for row in rows for earlier in row["history"]]

    def _select(self, ids: Sequence[str], which: str) -> list[dict[str, Any]]:
        """The first copies of the messages ``which``: a relation with their ids."""
        return self._lake.select(
            f"""
            WITH wanted AS (SELECT unnest($ids::VARCHAR[]) AS sds_id),
            messages AS (SELECT * FROM sds_messages WHERE sds_id IS NOT NULL AND {self._here})
            SELECT sds_id, sender_id, lamport_timestamp, coalesce({_HISTORY}, []) AS history
            FROM (SELECT sds_id, unnest(arg_min({{'sender_id': sender_id, 'lamport_timestamp': lamport_timestamp,
                      'causal_history': causal_history}}, (event_time, kafka_offset)))
                  FROM messages SEMI JOIN ({which}) USING (sds_id) GROUP BY sds_id)
            """,  # noqa: S608 - names of columns; values are bound
            {"ids": [*ids], **self._values},
        )


_HISTORY = "array_compact(list_ids(causal_history))"
