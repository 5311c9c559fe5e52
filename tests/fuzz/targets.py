"""The targets: what each takes, and the properties that hold for every input.

All bytes from outside are taken or refused with a reason, never with another exception; what is delivered is what
somebody sent; a state restored from its bytes goes on identically; CPU time and state are bounded by the size of the
input. Time is measured in CPU seconds against a generous budget, so that a busy machine does not matter.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from reliable_channel.core.errors import LocalError
from reliable_channel.core.sds import SdsChannel, SdsParameters
from reliable_channel.core.segmentation import Reassembler
from reliable_channel.core.wire.bloom import FilterFamily, FilterFormat
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import WireFamily, decode_sds_message, encode_sds_message
from reliable_channel.core.wire.segment import Dialect, Segment, decode_segment
from reliable_channel.core.wire.waku import decode_waku_message, encode_waku_message
from reliable_channel.transport.kafka_records import read_record
from tests.fuzz import inputs
from tests.fuzz.attack_target import ATTACK_MOVES
from tests.fuzz.cases_format import Step, Target
from tests.fuzz.edge_targets import NODE_JSON, REST
from tests.fuzz.machine_target import PARTICIPANT, snapshot_of_a_machine
from tests.fuzz.pipeline_targets import INGEST, OBSERVER, REASSEMBLY

BUDGET_S = 2.0
"""CPU seconds for one input; most need a few ms."""


@contextmanager
def budget(seconds: float = BUDGET_S) -> Iterator[None]:
    """Fail when the block takes more CPU time."""
    begin = time.process_time()
    yield
    used = time.process_time() - begin
    assert used < seconds, f"{used:.1f} s of CPU time"


# ---- decoding ----------------------------------------------------------------------------------------------------


def check_decoding(steps: list[Step]) -> None:
    """Every decoder gives a value or a reason; what a value encodes to is decoded to the same value."""
    for step in steps:
        data = step.data
        waku = decode_waku_message(data)
        if not isinstance(waku, Malformed):
            assert decode_waku_message(encode_waku_message(waku)) == waku
        for family in WireFamily:
            message = decode_sds_message(data, family)
            if not isinstance(message, Malformed):
                assert message.kind is not None
                assert decode_sds_message(encode_sds_message(message, family), family) == message
        for dialect in Dialect:
            assert isinstance(decode_segment(data, frozenset({dialect})), Segment | Malformed)
        for filter_family in FilterFamily:
            words = FilterFormat(filter_family).decode(data)
            assert isinstance(words, Malformed) or len(words) == FilterFormat(filter_family).byte_count
        read_record(data, [("pubsub_topic", data[:20]), ("source", None)])


DECODING = Target(
    "decoding",
    inputs.steps(
        ("sds", inputs.sds_bytes()),
        ("nim", inputs.sds_bytes(WireFamily.NIM)),
        ("segment", inputs.segments()),
        ("segment", inputs.broken(inputs.segments())),
        ("filter", inputs.nim_filters),
        ("envelope", inputs.envelopes(inputs.sds_bytes())),
        most=4,
    ),
    check_decoding,
)


# ---- snapshots ---------------------------------------------------------------------------------------------------


def check_snapshots(steps: list[Step]) -> None:
    """Damaged bytes are refused in a sentence, or give a state that goes on."""
    for step in steps:
        try:
            if step.kind == "sds":
                restored = SdsChannel.from_bytes(step.data, SdsParameters())
                restored.tick(inputs.START_MS)
                restored.to_bytes()
            else:
                reassembler = Reassembler.from_bytes(step.data, inputs.SEGMENTS)
                reassembler.expire(inputs.START_MS)
                reassembler.to_bytes()
        except LocalError as error:
            assert str(error)


def _valid_snapshots() -> tuple[bytes, bytes]:
    machine = snapshot_of_a_machine()
    return machine.sds.to_bytes(), machine.inbox.reassembler.to_bytes()


_SDS, _REASSEMBLER = _valid_snapshots()
SNAPSHOTS = Target(
    "snapshots",
    inputs.steps(
        ("sds", inputs.broken(inputs.st.just(_SDS))),  # type: ignore[attr-defined]
        ("reassembler", inputs.broken(inputs.st.just(_REASSEMBLER))),  # type: ignore[attr-defined]
        most=2,
    ),
    check_snapshots,
)


TARGETS = {
    target.name: target
    for target in (DECODING, INGEST, REASSEMBLY, OBSERVER, PARTICIPANT, SNAPSHOTS, REST, NODE_JSON, ATTACK_MOVES)
}


def run(target: Target, steps: list[Step]) -> None:
    """Check one input within its budget of CPU time."""
    with budget():
        target.check(steps)
