"""What waits for a channel is bounded, whatever strangers send."""

from __future__ import annotations

import pytest

from reliable_channel.channel.incoming import Arrivals
from reliable_channel.core.wire.waku import WakuMessage
from reliable_channel.transport.base import ReceivedEnvelope, Source


def envelope(size: int) -> ReceivedEnvelope:
    return ReceivedEnvelope(WakuMessage(bytes(size), "/t/1/x/proto"), "/waku/2/rs/0/0", b"h" * 32, Source.RELAY)


def test_beyond_the_number_or_the_bytes_nothing_is_taken_and_it_is_counted() -> None:
    arrivals = Arrivals(max_envelopes=3, max_bytes=100)
    small, large = envelope(1), envelope(98)
    assert [arrivals.offer(one) for one in (small, large, envelope(2), small, small)] == [
        True,
        True,
        False,
        True,
        False,
    ]
    assert (len(arrivals), arrivals.lost) == (3, 2)
    assert [arrivals.take() for _ in range(3)] == [small, large, small]
    assert arrivals.offer(large)
    with pytest.raises(IndexError):
        [arrivals.take() for _ in range(2)]


def test_the_proof_of_an_envelope_counts_as_well() -> None:
    """Envelopes that are all proof took 3 GB."""
    arrivals = Arrivals(max_envelopes=100, max_bytes=100)
    proof = WakuMessage(b"x", "/t/1/x/proto", rate_limit_proof=bytes(50))
    strange = ReceivedEnvelope(proof, "/waku/2/rs/0/0", b"h" * 32, Source.RELAY)
    assert [arrivals.offer(strange) for _ in range(3)] == [True, False, False]
    arrivals.take()
    assert arrivals.offer(envelope(100))


@pytest.mark.parametrize(
    ("sizes", "is_crowded"), [([1], False), ([1, 1], True), ([49], False), ([50], True), ([], False)]
)
def test_it_is_crowded_when_it_is_half_full(sizes: list[int], is_crowded: bool) -> None:
    arrivals = Arrivals(max_envelopes=4, max_bytes=100)
    arrivals.put(map(envelope, sizes))
    assert arrivals.is_crowded is is_crowded
