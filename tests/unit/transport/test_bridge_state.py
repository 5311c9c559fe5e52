"""What the bridge remembers over a crash."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.transport import bridge_state
from reliable_channel.transport.bridge import Bridge
from reliable_channel.transport.bridge_context import BridgeTopics
from reliable_channel.transport.bridge_state import BridgeGap, BridgeState
from reliable_channel.transport.kafka_clients import KafkaClients
from reliable_channel.transport.store.client import StoreClient
from tests.support.waiting import WAIT_S


def opened(path: Path) -> BridgeState:
    state = BridgeState(path)
    state.open()
    return state


def test_a_reopened_state_is_the_one_that_was_left(tmp_path: Path) -> None:
    state = opened(tmp_path / "state.json")
    state.acknowledge(5, [bytes(32), b"\x01" * 32])
    state.open_gap(BridgeGap(1, 2, "bridge_restart"))
    state.close()
    again = opened(tmp_path / "state.json")
    assert (again.acknowledged_ms, again.gaps, again.recent) == (
        5,
        (BridgeGap(1, 2, "bridge_restart"),),
        (bytes(32), b"\x01" * 32),
    )


@pytest.mark.parametrize("letter", ["x", "\x01", "\U0001f600"])
def test_the_content_topics_of_strangers_leave_the_state_small(tmp_path: Path, letter: str) -> None:
    """It is written with every batch: a thousand topics of emojis made it 12 MB."""
    state = opened(tmp_path / "state.json")
    for size in (30, 200, 1_000):
        state.note_content_topics(f"/{size}/{number}/{letter * size}" for number in range(1_000))
    state.acknowledge(5, [])
    assert 50_000 < (tmp_path / "state.json").stat().st_size < 2_000_000


def test_a_content_topic_in_use_is_kept_however_long_ago_it_was_new(tmp_path: Path) -> None:
    """A store that answers for named topics only was not asked for it any more, after 1 000 topics of strangers."""
    state = opened(tmp_path / "state.json")
    for number in range(2_500):
        if number % 900 == 0:
            state.note_content_topics(["/used/1/chat/proto"])
        state.note_content_topics([f"/strange/1/{number}/proto"])
    assert "/used/1/chat/proto" in state.content_topics


def test_a_second_bridge_on_the_same_state_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path / "state.json")
    with pytest.raises(EnvironmentFault, match="Another bridge"):
        opened(tmp_path / "state.json")
    first.close()
    opened(tmp_path / "state.json").close()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 99}', '{"version": 2, "acknowledged_ms": 1, "gaps": [3], "recent": []}']
)
def test_a_file_that_is_no_state_is_named_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    with pytest.raises(EnvironmentFault, match="not the state"):
        opened(path)
    assert path.read_text() == text


def test_a_write_that_fails_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = opened(tmp_path / "state.json")
    state.acknowledge(5, [])
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        state.acknowledge(9, [])
    monkeypatch.undo()
    state.close()
    assert opened(tmp_path / "state.json").acknowledged_ms == 5


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9), st.sampled_from(["a", "b"])), max_size=12),
    st.sampled_from([2, 1_000]),
    st.sampled_from([3, 60_000]),
)
def test_every_moment_of_every_gap_stays_covered_until_it_is_closed(
    gaps: list[tuple[int, int, str]], most: int, near_ms: int
) -> None:
    """Of two gaps that became one because there were too many, the record of the second stayed open for ever."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bridge_state, "MAX_GAPS", most)
        patch.setattr(bridge_state, "NEAR_MS", near_ms)
        check_gaps(gaps)


def check_gaps(gaps: list[tuple[int, int, str]]) -> None:
    state = BridgeState(Path("unused"))
    state._write = lambda: None  # type: ignore[method-assign]
    told: set[str] = set()
    for begin, length, cause in gaps:
        told.add(state.open_gap(BridgeGap(begin, begin + length, cause)).name)
    assert {g.name for g in state.gaps} == told, "who was told of a gap is told when it is closed"
    for begin, length, cause in gaps:
        assert any(g.cause == cause and g.from_ms <= begin and begin + length <= g.to_ms for g in state.gaps)


def test_gaps_that_follow_each_other_closely_are_joined_to_five_minutes(tmp_path: Path) -> None:
    state = opened(tmp_path / "state.json")
    for second in range(0, 900, 30):
        state.open_gap(BridgeGap(second * 1_000, second * 1_000 + 500, "cache_full"))
    assert [(gap.from_ms, gap.to_ms) for gap in state.gaps] == [(0, 270_500), (300_000, 570_500), (600_000, 870_500)]
    state.open_gap(BridgeGap(870_000, 2_000_000, "cache_full"))
    state.open_gap(BridgeGap(2_060_001, 2_060_002, "cache_full"))
    assert [(gap.from_ms, gap.to_ms) for gap in state.gaps][2:] == [(600_000, 2_000_000), (2_060_001, 2_060_002)]
    state.count_attempt(state.gaps[-1])
    state.open_gap(BridgeGap(2_060_003, 2_060_004, "cache_full"))
    assert [gap.from_ms for gap in state.gaps[3:]] == [2_060_001, 2_060_003], "a store is being asked for the former"


def test_too_many_gaps_widen_the_last_one_of_their_cause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_state, "MAX_GAPS", 2)
    state = opened(tmp_path / "state.json")
    for hour in range(5):
        state.open_gap(BridgeGap(hour * 3_600_000, hour * 3_600_000 + 5, "cache_full"))
    assert [(gap.from_ms, gap.to_ms) for gap in state.gaps] == [(0, 5), (3_600_000, 4 * 3_600_000 + 5)]


def test_a_bridge_that_is_stopped_twice_keeps_its_state_until_its_threads_have_ended(tmp_path: Path) -> None:
    """The second caller released the lock, and another bridge could take the state."""
    path = tmp_path / "bridge.json"
    topics = BridgeTopics("waku.envelopes", "waku.outgoing", "waku.dispatched", "waku.evidence", ())
    bridge = Bridge(KafkaClients({}, {}, {}), topics, None, StoreClient([]), path)
    bridge._state.open()
    work = threading.Event()
    bridge._threads = [threading.Thread(target=work.wait, args=(WAIT_S,))]
    bridge._threads[0].start()
    callers = [threading.Thread(target=bridge.stop) for _ in range(2)]
    for caller in callers:
        caller.start()
        caller.join(0.1)
    with pytest.raises(EnvironmentFault, match="Another bridge"):
        BridgeState(path).open()
    work.set()
    for caller in callers:
        caller.join(WAIT_S)
    other = BridgeState(path)
    other.open()
    other.close()
