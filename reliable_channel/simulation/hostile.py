"""Simulates the attackers of one channel: they overhear honest envelopes and respond to some of them with an attack.

Their actions depend on the plan, the seed and the number of the overheard envelope.
"""

from __future__ import annotations

import random
from collections import deque

from reliable_channel.core.wire.sds import SdsMessage
from reliable_channel.core.wire.waku import RELIABLE_CHANNEL_META, WakuMessage, encode_waku_message
from reliable_channel.simulation.attacks import ATTACKS, forgeries
from reliable_channel.simulation.randomness import stream
from reliable_channel.simulation.scenario import ChannelPlan, HostilePlan
from reliable_channel.simulation.scene import Forgery, Scene

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
