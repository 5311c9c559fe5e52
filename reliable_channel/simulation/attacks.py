"""Defines the attacks of hostile senders: each makes envelopes from overheard traffic and states the expected outcome.

An attack depends only on the scene and its random draws. The attackers of a channel overhear honest envelopes and
respond to some of them; what they do depends on the plan, the seed and the number of the overheard envelope.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.core.wire.hashing import js_message_id, keccak256
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, encode_sds_message
from reliable_channel.core.wire.segment import Segment, decode_segment, encode_segment
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, encode_waku_message
from reliable_channel.simulation.invented_names import INVENTED_NAMES
from reliable_channel.simulation.randomness import stream
from reliable_channel.simulation.scenario import ChannelPlan, HostilePlan
from reliable_channel.simulation.scene import AFTER_MS, BEFORE_MS, Fate, Forgery, Recipe, Scene

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
FILTER = FilterFormat()


def own_message(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """A stranger participates: its message names the honest messages."""
    yield scene.make_message(causal_history=scene.recent(2)), AFTER_MS, Fate.MESSAGE


def spoofed_sender(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """A message in the victim's name with a valid id of its own. SDS has no signatures, so it is a valid message."""
    yield scene.make_message(sender_id=scene.victim.sender_id), AFTER_MS, Fate.MESSAGE


def content_under_victims_id(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Another text under the victim's id, in the victim's or the attacker's name, before or after it."""
    victim = scene.victim
    sender = scene.draw.choice((victim.sender_id, scene.attacker))
    delay = scene.draw.choice((BEFORE_MS, AFTER_MS))
    lamport = victim.lamport_timestamp if scene.draw.random() < 0.5 else scene.clock()
    forged = scene.make_message(
        sender_id=sender, message_id=victim.message_id, lamport_timestamp=lamport or scene.clock()
    )
    yield forged, delay, Fate.ANY


def ephemeral_under_victims_id(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """An ephemeral message under the victim's id."""
    sender = scene.draw.choice((scene.victim.sender_id, scene.attacker))
    delay = scene.draw.choice((BEFORE_MS, AFTER_MS))
    yield (
        scene.make_message(sender_id=sender, message_id=scene.victim.message_id, lamport_timestamp=None),
        delay,
        Fate.ANY,
    )


def victims_text_under_another_name(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """The victim's content under the victim's id in the attacker's name: a copy that claims another author."""
    yield replace(scene.victim, sender_id=scene.attacker, causal_history=()), BEFORE_MS, Fate.ANY


def message_refused_under_victims_id(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """A message that SDS refuses (its clock is a day and more ahead), under the victim's id and name."""
    victim = scene.victim
    forged = scene.make_message(
        sender_id=victim.sender_id, message_id=victim.message_id, lamport_timestamp=scene.clock(DAY_MS + HOUR_MS)
    )
    yield forged, scene.draw.choice((BEFORE_MS, AFTER_MS)), Fate.NOTHING


def history_of_nothing(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Up to a thousand ids of messages that never existed."""
    names = tuple(HistoryEntry(f"{scene.text()}-{i}") for i in range(scene.draw.choice((3, 100, 1_000))))
    yield scene.make_message(causal_history=names), BEFORE_MS, Fate.ANY


def wide_ids(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Ids, sender ids and hints inside a history and a repair request, of up to 40 000 characters."""
    size = scene.draw.choice((1_024, 1_025, 40_000))
    entry = HistoryEntry(scene.text() + "i" * (size - 16), b"h" * size, "s" * size)
    yield scene.make_message(causal_history=(entry,)), BEFORE_MS, Fate.ANY
    yield scene.make_message(content=b"", repair_request=(entry,), lamport_timestamp=scene.clock()), BEFORE_MS, Fate.ANY


def hint_junk(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Retrieval hints that are not hashes, for the victim (still on its way) and for a message that never existed."""
    sizes = (0, 1, 31, 33, 500)
    hints = [scene.draw.randbytes(scene.draw.choice(sizes)) for _ in range(2)]
    names = (HistoryEntry(scene.victim.message_id, hints[0]), HistoryEntry(scene.text(), hints[1], "\x00" * 8))
    yield scene.make_message(causal_history=names, lamport_timestamp=scene.clock() + 1), BEFORE_MS, Fate.ANY


def forged_acknowledgement(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """A message in another participant's name that names the honest messages: its acknowledgements are false."""
    forged = scene.make_message(sender_id=scene.one_of_the_others(), causal_history=scene.recent(2))
    yield forged, scene.draw.choice((BEFORE_MS, AFTER_MS)), Fate.ANY


def forged_filter(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """A filter in another participant's name: all ones, all honest messages, junk below the saturation limit, or no
    filter."""
    words = bytearray(FILTER.byte_count)
    kind = scene.draw.randrange(4)
    if kind == 0:
        words = bytearray(b"\xff" * FILTER.byte_count)
    elif kind == 1:
        FILTER.insert(words, [m.message_id for m in scene.heard])
    elif kind == 2:
        words = bytearray(scene.draw.randbytes(FILTER.byte_count))
    else:
        words = bytearray(scene.draw.randbytes(scene.draw.randrange(1, 40)))
    for _ in range(2):
        yield scene.make_message(sender_id=scene.one_of_the_others(), bloom_filter=bytes(words)), AFTER_MS, Fate.ANY


def cycle(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Two messages name a third, and it names one of them; or one names itself."""
    first, second, third = (scene.text() for _ in range(3))
    names = {first: (third,), second: (third,), third: (first,)}
    if scene.draw.random() < 0.3:
        names = {first: (first,)}
    at = [scene.clock() + scene.draw.randrange(3) for _ in names]
    for (sds_id, named), lamport in zip(names.items(), at, strict=True):
        history = tuple(HistoryEntry(name) for name in named)
        forged = scene.make_message(message_id=sds_id, lamport_timestamp=lamport, causal_history=history)
        yield forged, BEFORE_MS, Fate.ANY


def cycle_around_victim(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Messages that name the victim before it arrives, with older clocks than the victim's."""
    before = (scene.victim.lamport_timestamp or scene.clock()) - scene.draw.randrange(3)
    for _ in range(2):
        forged = scene.make_message(lamport_timestamp=before, causal_history=(HistoryEntry(scene.victim.message_id),))
        yield forged, BEFORE_MS, Fate.ANY


def lamport_rider(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """A clock as far ahead as may be tolerated, or farther."""
    ahead = scene.draw.choice((30_000, 119_000, 299_000, 599_000, HOUR_MS, DAY_MS - 1, DAY_MS + HOUR_MS))
    content = None if scene.draw.random() < 0.7 else b""
    yield scene.make_message(content, lamport_timestamp=scene.clock(ahead)), BEFORE_MS, Fate.ANY


def conflict(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Two texts of the attacker under one id of its own."""
    sds_id = scene.text()
    for delay in (BEFORE_MS, AFTER_MS):
        yield scene.make_message(message_id=sds_id), delay, Fate.ANY


def equal_text(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """The same text by two senders under the hash of the text, as js-waku names messages."""
    content = f"ok {scene.draw.randrange(4)}".encode()
    for sender in (scene.attacker, f"{scene.attacker}-2"):
        yield scene.make_message(content, sender_id=sender, message_id=js_message_id(content)), AFTER_MS, Fate.ANY


def segment_poison(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """False bytes for the place of the victim's segment, under an id of their own and the victim's name."""
    segment = _decode_segment(scene.victim)
    if segment is None:
        return
    counts = [segment.data_count or 1, (segment.data_count or 1) + 1]
    for delay in (BEFORE_MS, AFTER_MS):
        false = replace(segment, payload=scene.draw.randbytes(len(segment.payload)))
        if not segment.is_parity and scene.draw.random() < 0.4:
            false = replace(false, data_count=scene.draw.choice(counts), index=scene.draw.randrange(min(counts)))
        elif segment.is_parity and scene.draw.random() < 0.4:
            false = replace(false, parity_count=(segment.parity_count or 1) + 1)
        sender = scene.victim.sender_id
        lamport = scene.victim.lamport_timestamp
        yield scene.make_message(encode_segment(false), sender_id=sender, lamport_timestamp=lamport), delay, Fate.ANY


def segment_under_victims_id(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """A whole message in one segment under the id of the victim's: the victim's set must not count it."""
    if _decode_segment(scene.victim) is None:
        return
    text = f"hostile {scene.text()}".encode()
    false = Segment(keccak256(text), 0, 1, 0, False, text)
    forged = scene.make_message(
        encode_segment(false),
        sender_id=scene.draw.choice((scene.victim.sender_id, scene.attacker)),
        message_id=scene.victim.message_id,
        lamport_timestamp=scene.victim.lamport_timestamp,
    )
    yield forged, scene.draw.choice((BEFORE_MS, AFTER_MS)), Fate.ANY


def repair_junk(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Sync messages that request the victim and messages that never existed."""
    requested = (HistoryEntry(scene.victim.message_id), *(HistoryEntry(scene.text(), b"", "nobody") for _ in range(50)))
    yield scene.make_message(b"", repair_request=requested), AFTER_MS, Fate.ANY


def strange_channels(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """The victim and a message of the attacker in unknown channels, a new one each time, whose id has the maximum
    length or is the channel's own in another spelling."""
    names = (scene.text(), f"{scene.channel_id} ", scene.channel_id.upper(), scene.text() + "c" * 1_008)
    for channel_id in names:
        copy = replace(scene.victim, channel_id=channel_id)
        yield copy, scene.draw.choice((BEFORE_MS, AFTER_MS)), Fate.ANY
        yield scene.make_message(channel_id=channel_id, causal_history=scene.recent(2)), BEFORE_MS, Fate.ANY


def odd_clocks(scene: Scene) -> Iterator[tuple[SdsMessage, int, Fate]]:
    """Lamport timestamps of 0, 1, in seconds, µs and ns, and where numbers of 63 and 64 bits end."""
    for lamport in (0, 1, scene.now // 1_000, scene.now * 1_000, scene.now * 10**6, 2**63 - 1, 2**63, 2**64 - 1):
        content = None if scene.draw.random() < 0.7 else b""
        names = scene.recent(1) if scene.draw.random() < 0.3 else ()
        yield scene.make_message(content, lamport_timestamp=lamport, causal_history=names), BEFORE_MS, Fate.ANY


ATTACKS: dict[str, Recipe] = {
    recipe.__name__: recipe
    for recipe in (
        own_message,
        spoofed_sender,
        content_under_victims_id,
        ephemeral_under_victims_id,
        victims_text_under_another_name,
        message_refused_under_victims_id,
        history_of_nothing,
        wide_ids,
        hint_junk,
        forged_acknowledgement,
        forged_filter,
        cycle,
        cycle_around_victim,
        lamport_rider,
        conflict,
        equal_text,
        segment_poison,
        segment_under_victims_id,
        repair_junk,
        *INVENTED_NAMES,
    )
}
"""The attacks used by a plan that names none."""

NAMED_ONLY: dict[str, Recipe] = {recipe.__name__: recipe for recipe in (strange_channels, odd_clocks)}
"""The attacks used only if a plan names them."""


def forgeries(attack: str, scene: Scene) -> list[Forgery]:
    """The hostile messages of one attack, in the order in which they are sent. An empty content makes a sync
    message."""
    made = []
    recipe = ATTACKS.get(attack) or NAMED_ONLY[attack]
    for message, delay_ms, fate in recipe(scene):
        sent = replace(message, content=None) if message.content == b"" else message
        made.append(Forgery(attack, sent, encode_sds_message(sent, scene.family), delay_ms, fate))
    return made


def _decode_segment(message: SdsMessage) -> Segment | None:
    """The segment that a message carries; ``None`` for a bare payload and for no content."""
    if message.content is None or message.lamport_timestamp is None:
        return None
    segment = decode_segment(message.content)
    return None if isinstance(segment, Malformed) else segment


MEMORY = 200
"""Honest messages that attackers remember."""


class Attackers:
    """All hostile senders of one channel; none when the plan has no ``hostile`` part."""

    def __init__(self, plan: ChannelPlan, seed: int) -> None:
        self._plan = plan
        self._seed = seed
        self._heard: deque[SdsMessage] = deque(maxlen=MEMORY)
        self._overheard = 0
        self._sent = 0

    def overhear(self, message: SdsMessage, now: int) -> list[Forgery]:
        """The attacks that respond to an honest message dispatched at ``now`` (virtual Unix ms)."""
        hostile = self._plan.hostile
        if hostile is None or not hostile.senders:
            return []
        self._heard.append(message)
        made: list[Forgery] = []
        for move in hostile.moves:
            if move.envelope == self._overheard:
                draw = stream(self._seed, "move", self._plan.channel_id, self._overheard, move.draw)
                made += forgeries(move.attack, self._scene(hostile, message, now, draw))
        self._overheard += 1
        draw = stream(self._seed, "hostile", self._plan.channel_id, self._overheard)
        if self._overheard > hostile.begins_after and draw.random() < hostile.per_envelope:
            scene = self._scene(hostile, message, now, draw)
            made += forgeries(draw.choice(hostile.attacks or tuple(ATTACKS)), scene)
        return made

    def _scene(self, hostile: HostilePlan, victim: SdsMessage, now: int, draw: random.Random) -> Scene:
        return Scene(
            channel_id=self._plan.channel_id,
            attacker=draw.choice(hostile.senders),
            victim=victim,
            heard=tuple(self._heard),
            participants=self._plan.participants,
            now=now,
            flood=hostile.flood,
            draw=draw,
            family=self._plan.family,
        )

    def envelope(self, forgery: Forgery, now: int) -> bytes:
        """The bytes of a new Waku envelope around a hostile message; never the same bytes twice."""
        self._sent += 1
        return encode_waku_message(
            WakuMessage(
                payload=forgery.data,
                content_topic=self._plan.content_topic,
                version=0,
                timestamp=now * 1_000_000 + self._sent,
                meta=RELIABLE_CHANNEL_META,
                ephemeral=True if forgery.message.lamport_timestamp is None else None,
            )
        )
