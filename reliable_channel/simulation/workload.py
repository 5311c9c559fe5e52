"""Generates the messages of a workload: each follows from the seed, its channel and its number alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from reliable_channel.simulation.randomness import random_bytes, stream
from reliable_channel.simulation.scenario import ChannelPlan, Fault

_OF_SEVERAL_SEGMENTS = {Fault.SEGMENT_MISSING, Fault.UNDECODABLE, Fault.HASH_MISMATCH, Fault.PARITY_SAVES}
_WORDS = ("ok", "yes", "on my way", "👍", "who is there?", "see you at eight", "thanks", "again, please")


@dataclass(frozen=True, slots=True)
class PlannedMessage:
    """One application message before anything happened to it. ``at_ms`` counts from the start of the scenario."""

    number: int
    sender: str
    at_ms: int
    payload: bytes
    ephemeral: bool


def plan_messages(plan: ChannelPlan, seed: int) -> Iterator[PlannedMessage]:
    """All messages of a channel, by number. Any slice of the numbers can be made anywhere with the same result."""
    if plan.sends is None:
        yield from (plan_message(plan, seed, number) for number in range(plan.messages))
        return
    for number, send in enumerate(plan.sends):
        payload = random_bytes(max(1, send.size), seed, "given", plan.channel_id, number)
        yield PlannedMessage(number, send.sender, send.at_ms, payload, send.ephemeral)


def plan_message(plan: ChannelPlan, seed: int, number: int) -> PlannedMessage:
    """The message of that number; a function of (seed, channel id, number) and the plan."""
    draw = stream(seed, "message", plan.channel_id, number)
    slot = plan.duration_ms / max(1, plan.messages)
    at_ms = int(number * slot + draw.random() * slot)
    joined = dict(plan.joins_at)
    present = [name for name in plan.participants if joined.get(name, 0) <= at_ms] or [plan.participants[0]]
    fault = dict(plan.faults).get(number)
    ephemeral = draw.random() < plan.ephemeral and fault is None
    return PlannedMessage(
        number=number,
        sender=present[draw.randrange(len(present))],
        at_ms=at_ms,
        payload=_make_payload(plan, seed, number, ephemeral, fault),
        ephemeral=ephemeral,
    )


def _make_payload(plan: ChannelPlan, seed: int, number: int, ephemeral: bool, fault: Fault | None) -> bytes:
    draw = stream(seed, "payload", plan.channel_id, number)
    kind, again = draw.random(), draw.random() < plan.repeats and fault is None
    if fault in _OF_SEVERAL_SEGMENTS:
        kind = 1.0
    if kind < plan.sizes.short or ephemeral:
        word = _WORDS[draw.randrange(len(_WORDS))].encode()
        return word if again else f"{number}: ".encode() + word * draw.randint(1, 8)
    if kind < plan.sizes.short + plan.sizes.medium:
        return random_bytes(draw.randint(200, plan.segment_size), seed, "medium", plan.channel_id, number)
    if again:
        return random_bytes(plan.segment_size * 2 + 17, seed, "file", plan.channel_id)
    segments = draw.randint(2, max(2, plan.sizes.max_segments))
    size = plan.segment_size * (segments - 1) + draw.randint(1, plan.segment_size)
    body = random_bytes(size, seed, "large", plan.channel_id, number)
    # A payload that ends in zero bytes is the one whose padding is hard to cut (Segmentation 0.1).
    return body[:-3] + b"\0\0\0" if draw.random() < 0.2 else body
