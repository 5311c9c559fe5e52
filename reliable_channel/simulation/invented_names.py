"""Defines the attacks that invent names: ids that never existed, and senders that nobody knows. Both are free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage
from reliable_channel.simulation.scene import AFTER_MS, BEFORE_MS, Fate, Recipe, Scene

PREFIXES = ("", "\x01", "!", "~", "\U0010ffff")
"""Names sort where their inventor wants: before or after those of all honest senders."""


def early_copy_with_another_history(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Exact copies of the victim but for their histories, which nothing binds to it: some of its own dependencies, and
    ids that never existed or that look like internal keys. Other names may name these ids too."""
    victim = scene.victim
    if victim.content is None or victim.lamport_timestamp is None:
        return
    never = [_invent_id(scene) for _ in range(scene.draw.randrange(1, 4))]
    for _ in range(scene.draw.choice((1, 1, 2, 3))):
        own = [entry for entry in victim.causal_history if scene.draw.random() < 0.7]
        history = [*own, *(HistoryEntry(each) for each in never if scene.draw.random() < 0.8)]
        scene.draw.shuffle(history)
        yield replace(victim, causal_history=tuple(history)), BEFORE_MS, Fate.COPY
    for _ in range(scene.draw.choice((0, 0, 1, 3))):
        names = (HistoryEntry(scene.draw.choice(never)),)
        yield scene.make_message(sender_id=_invent_sender(scene), causal_history=names), BEFORE_MS, Fate.ANY


def _invent_id(scene: Scene) -> str:
    """An id that never existed. Some read like a key under which a message waits in a buffer."""
    victim = scene.victim
    number = scene.draw.randrange(4)
    if number == 0:
        id_ = victim.message_id
        return f"\x00{len(id_)}\x00{id_}{victim.lamport_timestamp}\x00{victim.sender_id}"
    if number == 1:
        return f"\x00{victim.lamport_timestamp}\x00{victim.message_id}"
    return scene.text()


def _invent_sender(scene: Scene) -> str:
    """The name of a sender that nobody knows."""
    return f"{scene.draw.choice(PREFIXES)}{scene.attacker}-{scene.text()}"


def chain_of_nothing(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Messages that arrive one after the other, each the missing one of the message before, naming the next one."""
    ids = [scene.text() for _ in range(scene.draw.randrange(2, 7))]
    at = scene.clock()
    for number, (sds_id, following) in enumerate(zip(ids, [*ids[1:], scene.text()], strict=True)):
        forged = scene.make_message(
            message_id=sds_id,
            sender_id=scene.attacker if scene.draw.random() < 0.5 else _invent_sender(scene),
            lamport_timestamp=at - number,
            causal_history=(HistoryEntry(following),),
        )
        yield forged, BEFORE_MS + number * scene.draw.choice((0, 1_000, 40_000)), Fate.ANY


def invented_losses(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Ids that never existed, stated as of the victim's sender or of nobody; then others acknowledge the message."""
    owner = scene.draw.choice((scene.victim.sender_id, None))
    names = tuple(HistoryEntry(scene.text(), b"", owner) for _ in range(scene.draw.randrange(11, 60)))
    claim = scene.make_message(causal_history=names)
    yield claim, scene.draw.choice((BEFORE_MS, AFTER_MS)), Fate.ANY
    for _ in range(scene.draw.randrange(3)):
        named = (HistoryEntry(claim.message_id, b"", claim.sender_id),)
        yield scene.make_message(sender_id=_invent_sender(scene), causal_history=named), AFTER_MS, Fate.ANY


def flood(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Many messages at once, each by a new sender; content, ephemeral and sync messages."""
    prefix = scene.draw.choice(PREFIXES)
    for number in range(scene.flood):
        sender = f"{prefix}{scene.attacker}-{scene.text()}"
        kind = number % 3
        if kind == 0:
            names = scene.recent(1) if scene.draw.random() < 0.3 else ()
            yield scene.make_message(sender_id=sender, causal_history=names), BEFORE_MS, Fate.ANY
        elif kind == 1:
            yield (
                scene.make_message(sender_id=sender, message_id=scene.text(), lamport_timestamp=None),
                BEFORE_MS,
                Fate.ANY,
            )
        else:
            yield scene.make_message(b"", sender_id=sender, causal_history=scene.recent(1)), BEFORE_MS, Fate.ANY


def odd_texts(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Names and ids that readers of the tables may stumble over: beyond every upper bound, escape sequences of
    terminals, formulas of spreadsheets, controls, and texts that no honest sender would choose."""
    texts = (
        "\U0010ffff" * scene.draw.randrange(1, 80),
        f"\x1b]0;{scene.text()}\x07\x1b[2J",
        f'=HYPERLINK("x{scene.text()}")',
        f"@{scene.text()}\r\n,;\t'\"",
        f"\u202e{scene.text()}\u2066",
        "\x00" * scene.draw.randrange(1, 20),
    )
    for text in scene.draw.sample(texts, 2):
        yield scene.make_message(sender_id=text), BEFORE_MS, Fate.ANY
        yield scene.make_message(message_id=f"{text}{scene.text()}", causal_history=scene.recent(1)), AFTER_MS, Fate.ANY


INVENTED_NAMES: tuple[Recipe, ...] = (
    early_copy_with_another_history,
    chain_of_nothing,
    invented_losses,
    flood,
    odd_texts,
)
