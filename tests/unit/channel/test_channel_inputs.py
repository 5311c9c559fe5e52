"""The bytes of inputs in the journal."""

from __future__ import annotations

import pytest

from reliable_channel.channel.steps import (
    Closing,
    DispatchDone,
    DispatchFailed,
    EnvelopeReceived,
    Input,
    Opened,
    SendRequested,
    Ticked,
    decode_input,
    encode_input,
)
from reliable_channel.core.wire._pb import channel_state_pb2 as pb


@pytest.mark.parametrize(
    "given",
    [
        Opened(7),
        Ticked(0),
        Closing(7),
        SendRequested(7, b""),
        SendRequested(7, bytes(200), "id"),
        SendRequested(0, bytes(1_048_576), "i" * 64),
        EnvelopeReceived(7, bytes(20_000), b"h" * 32),
        EnvelopeReceived(7, b"x", None),
        DispatchDone(7, "id", b"h" * 32, own=False),
        DispatchFailed(7, "id", True, "why"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_every_input_comes_back_and_is_the_bytes_that_protobuf_writes(given: Input) -> None:
    data = encode_input(given)
    assert decode_input(data) == given
    assert pb.JournalEntry.FromString(data).SerializeToString() == data
