"""What the open sets of all hashes hold together is bounded by quotas (docs/segmentation.md, *Bounds*)."""

from __future__ import annotations

import random

import pytest

from reliable_channel.config import Quota, QuotaSettings
from reliable_channel.core.segmentation import SegmentationConfig
from reliable_channel.core.wire.hashing import keccak256
from reliable_channel.core.wire.segment import Segment, encode_segment
from reliable_channel.pipeline.ingest.quotas import HARD_LIMIT, Candidate, Cost, QuotaUsage
from reliable_channel.pipeline.reassembly.sets import HashSets, SegmentRow

PLACE = ("waku.envelopes", 0)
MINUTE = 60_000
WINDOW_MS = 10 * MINUTE
CONFIG = SegmentationConfig(set_timeout_ms=5 * MINUTE, max_set_lifetime_ms=60 * MINUTE)
PLENTY = Quota(messages=10**9, bytes=10**9, segments=10**9, named_ids=10**9)
WIDE = QuotaSettings(window_ms=WINDOW_MS, sender=PLENTY, channel=PLENTY, content_topic=PLENTY, pattern=PLENTY)
SEGMENTS, BYTES = 40, 6_000


def windows(span_ms: int) -> int:
    """How many windows a span can touch."""
    return -(-span_ms // WINDOW_MS) + 1


class Flood:
    """Strangers who open a set with every segment, as many as they may, or spread them so that what they have is fed.

    Every segment comes under a new sender id in a new content topic: quotas of smaller scopes never hold them."""

    def __init__(self, quotas: QuotaSettings, feeding: bool) -> None:
        self.usage, self.feeding = QuotaUsage(quotas, lambda *_: None), feeding
        self.sets: dict[bytes, HashSets] = {}
        self.last: dict[bytes, tuple[int, int, int]] = {}
        """Hash → who opened the set, how many segments it has, and when the last came."""
        self.offset = self.opened = 0

    def send(self, now: int) -> None:
        """One segment, if the quotas admit it."""
        hungry = [key for key, (_, count, at) in self.last.items() if now - at > 4 * MINUTE and count < 250]
        if self.feeding and hungry:
            key = hungry[0]
            number, index, _ = self.last[key]
        else:
            number, index, key = self.opened, 0, keccak256(str(self.opened).encode())
            self.opened += 1
        content = encode_segment(Segment(key, index, 255, None, False, b"x" * 200))
        sender = ("p", f"topic {number}", "talk", "spec", f"mallory {number}")
        self.offset += 1
        cost = Cost(messages=1, bytes=len(content), segments=1)
        one = Candidate(PLACE, self.offset, now // WINDOW_MS, sender, cost)
        if self.usage.judge([(PLACE, one.window, sender, cost)], lambda _: [one]):
            return
        row = SegmentRow(*PLACE, self.offset, now * 1000, *sender, f"id {self.offset}", None, "v0.1", content)
        self.sets.setdefault(key, HashSets(CONFIG)).add(row)
        self.last[key] = (number, index + 1, now)

    def tick(self, now: int) -> None:
        """The recorded clock: what has expired is forgotten."""
        for key, held in list(self.sets.items()):
            held.tick(PLACE, self.offset, now * 1000)
            if held.is_blank:
                del self.sets[key], self.last[key]

    def held(self) -> tuple[int, int]:
        """Open sets and their bytes."""
        every = [one for held in self.sets.values() for _, one in held._scopes.values()]
        return sum(one.open_sets for one in every), sum(one.buffered_bytes for one in every)


@pytest.mark.parametrize("what", ["sets", "bytes"])
def test_the_quotas_bound_the_open_sets_of_all_hashes_and_their_bytes(what: str) -> None:
    """Sets, and the bytes that they hold, count by the lifetime of a set: incomplete sets are kept so long."""
    sets = what == "sets"
    of_all = PLENTY.model_copy(update={"segments": SEGMENTS} if sets else {"bytes": BYTES})
    flood = Flood(WIDE.model_copy(update={"pubsub_topic": of_all}), feeding=not sets)
    bound = HARD_LIMIT * (SEGMENTS if sets else BYTES) * windows(CONFIG.max_set_lifetime_ms)
    most = 0
    chance = random.Random(7)
    for now in range(7 * MINUTE, 150 * MINUTE, 15_000):
        flood.tick(now)
        for _ in range(chance.choice([0, 5, 40]) if sets else now // 15_000 % 2):
            flood.send(now)
        most = max(most, flood.held()[not sets])
    assert bound / 4 <= most <= bound
