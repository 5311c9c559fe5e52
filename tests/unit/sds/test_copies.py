"""Copies of one message that differ in their history: nothing binds a history, so a message waits for what all name."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.sds import Delivered, DependencyLost, MissingDependency, RefetchDue, SdsChannel, SdsEvent
from reliable_channel.core.sds.incoming import MAX_HELD_TIMES, PARTICIPANT_LOST_MS
from reliable_channel.core.wire.hashing import sds_message_id
from reliable_channel.core.wire.sds import SdsMessage
from tests.unit.sds.sds_network import T0, message, of_type, opened

CONTENT = b"mine"
OWN = sds_message_id("alice", T0 + 3, CONTENT)
PARTICIPANTS = pytest.mark.parametrize("participant", ["bob", None], ids=["participant", "observer"])


def copy_of_own(*history: str) -> SdsMessage:
    return message(OWN, "alice", T0 + 3, history, content=CONTENT)


def delivered(channel: SdsChannel, messages: list[SdsMessage]) -> list[str]:
    ids = []
    for number, one in enumerate(messages):
        step = channel.receive(one, T0 + 10 + number, id_verified=True)
        ids += [event.message_id for event in of_type(step, Delivered)]
    return ids


@PARTICIPANTS
def test_an_early_copy_that_names_what_never_existed_holds_nothing(participant: str | None) -> None:
    channel = opened(participant, before_observation=False)
    naming = message("reply", "carol", T0 + 4, (OWN,))
    assert delivered(channel, [copy_of_own("never"), naming]) == []
    assert delivered(channel, [copy_of_own()]) == [OWN, "reply"]


@PARTICIPANTS
def test_a_copy_with_fewer_dependencies_leaves_the_common_ones(participant: str | None) -> None:
    channel = opened(participant, before_observation=False)
    assert delivered(channel, [copy_of_own("never", "first"), copy_of_own("first")]) == []
    assert delivered(channel, [message("first", "alice", T0 + 1)]) == ["first", OWN]


@PARTICIPANTS
@pytest.mark.parametrize("order", [("first", "never"), ("never", "first")])
def test_a_copy_releases_a_message_whose_other_dependencies_came_meanwhile(
    participant: str | None, order: tuple[str, str]
) -> None:
    channel = opened(participant, before_observation=False)
    first = message("first", "alice", T0 + 1)
    assert delivered(channel, [copy_of_own(*order), first, copy_of_own("first")]) == ["first", OWN]


@PARTICIPANTS
def test_copies_of_a_further_send_are_told_from_the_owner_of_the_id(participant: str | None) -> None:
    """The early copy waits under a key of its own while another message owns the id."""
    channel = opened(participant, before_observation=False)
    digest = "ab" * 32
    first = channel.receive(message(digest, "carol", T0 + 1, ("never",), content=b"ok"), T0 + 5, id_verified=False)
    further = channel.receive(message(digest, "carol", T0 + 1, (), content=b"ok"), T0 + 6, id_verified=False)
    assert (len(of_type(first, Delivered)), len(of_type(further, Delivered))) == (0, 1)


histories = st.lists(st.sampled_from(["a", "b", "c", "never 1", "never 2"]), max_size=4, unique=True)


@PARTICIPANTS
@given(st.lists(histories, min_size=1, max_size=3), st.permutations(["a", "b", "c"]))
def test_the_order_of_copies_does_not_decide_when_a_message_is_delivered(
    participant: str | None, named: list[list[str]], arrival: list[str]
) -> None:
    """Whatever copies arrive, in whatever order: it is delivered as soon as what all of them name is here."""
    common = set(named[0]).intersection(*named)
    results = set()
    for order in permutations(named):
        channel = opened(participant, before_observation=False)
        ids = delivered(channel, [copy_of_own(*history) for history in order])
        ids += delivered(channel, [message(each, "carol", T0 + 1) for each in arrival])
        expected = not common & {"never 1", "never 2"}
        assert (OWN in ids) is expected
        if expected and len(named) > 1:
            results.add(tuple(ids[: ids.index(OWN) + 1])[-1])
    assert results <= {OWN}


@PARTICIPANTS
@pytest.mark.parametrize("early", [(), ("never",), ("first",), ("first", "never")])
def test_an_early_copy_with_another_history_hides_no_loss(participant: str | None, early: tuple[str, ...]) -> None:
    """What only the sender's own copy names is missing too, whether the message still waits or was delivered."""
    channel = opened(participant, before_observation=False)
    channel.receive(message("first", "alice", T0 + 1), T0 + 5)
    events = [*channel.receive(copy_of_own(*early), T0 + 10, id_verified=True).events]
    for _ in range(2):
        events += channel.receive(copy_of_own("first", "lost"), T0 + 11, id_verified=True).events
    assert [event.message_id for event in events if isinstance(event, Delivered)] == [OWN]
    missing = [event.message_id for event in events if isinstance(event, MissingDependency)]
    assert missing == [each for each in early if each == "never"] + ["lost"]


def tick_to(channel: SdsChannel, end: int, now: int = T0) -> list[SdsEvent]:
    """Run a participant that is awake all the time."""
    events: list[SdsEvent] = []
    for at in range(now, end + 1, 600_000):
        events += channel.tick(at).events
    return events + list(channel.tick(end).events)


@pytest.mark.parametrize("names", [("alice",), ("alice", "invented 1"), ("alice", "invented 1", "invented 2")])
def test_a_dependency_that_never_existed_ages_out_however_many_names_name_it(names: tuple[str, ...]) -> None:
    channel = opened("bob", before_observation=False, sync_min_interval_ms=0)
    channel.receive(copy_of_own("never"), T0 + 10, id_verified=True)
    for name in names[1:]:
        channel.receive(message(f"of {name}", name, T0 + 1, ("never",)), T0 + 11)
    channel.receive(message("reply", "carol", T0 + 4, (OWN,)), T0 + 12)
    channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    before = tick_to(channel, T0 + PARTICIPANT_LOST_MS - 1)
    assert not any(isinstance(event, Delivered) for event in before)
    after = tick_to(channel, T0 + PARTICIPANT_LOST_MS + 60_000, T0 + PARTICIPANT_LOST_MS)
    assert [event.message_id for event in after if isinstance(event, DependencyLost)] == ["never"]
    left = {e.message_id: e.lost_dependencies for e in after if isinstance(e, Delivered)}
    assert left == {OWN: ("never",), **{f"of {name}": ("never",) for name in names[1:]}, "reply": ()}


@PARTICIPANTS
def test_a_chain_of_invented_dependencies_that_arrive_in_time_ends(participant: str | None) -> None:
    """Each arrives shortly before it would be lost and names the next one."""
    channel = opened(participant, before_observation=False, sync_min_interval_ms=0)
    timeout = PARTICIPANT_LOST_MS if participant else 300_000
    clock = T0 + 1_000
    channel.receive(message("reply", "carol", clock, ("0",)), T0)
    now, left = T0, []
    for number in range(3 * MAX_HELD_TIMES):
        left += [e.message_id for e in tick_to(channel, now + timeout * 9 // 10, now) if isinstance(e, Delivered)]
        now += timeout * 9 // 10
        step = channel.receive(message(str(number), f"s{number}", clock - 1 - number, (str(number + 1),)), now)
        left += [event.message_id for event in of_type(step, Delivered)]
        if "reply" in left:
            break
    assert now - T0 <= (MAX_HELD_TIMES + 1) * timeout
    assert left == ["reply"]


@PARTICIPANTS
def test_of_messages_held_too_long_none_lists_another_as_lost(participant: str | None) -> None:
    """They left in the order of arrival, so that the first listed the second, which was here, as lost."""
    channel = opened(participant, before_observation=False, sync_min_interval_ms=0)
    timeout = PARTICIPANT_LOST_MS if participant else 300_000
    channel.receive(message("reply", "carol", T0 + 900, ("first",)), T0 + 1)
    channel.receive(message("first", "alice", T0 + 800, ("0",)), T0 + 2)
    now, left = T0, {}
    for number in range(MAX_HELD_TIMES + 1):
        events = tick_to(channel, now + timeout * 9 // 10, now)
        now += timeout * 9 // 10
        left |= {event.message_id: event.lost_dependencies for event in events if isinstance(event, Delivered)}
        channel.receive(message(str(number), f"s{number}", T0 + 700 - number, (str(number + 1),)), now)
    assert list(left.items()) == [("first", ("0",)), ("reply", ())]


def test_after_a_long_sleep_a_participant_asks_before_it_gives_up() -> None:
    channel = opened("bob", before_observation=False, sync_min_interval_ms=0)
    channel.receive(message("reply", "carol", T0 + 4, ("first",)), T0 + 11)
    awake = T0 + 20 * PARTICIPANT_LOST_MS
    step = channel.tick(awake)
    assert (len(of_type(step, RefetchDue)), len(of_type(step, DependencyLost))) == (1, 0)
    step = channel.receive(message("first", "alice", T0 + 1), awake + 1)
    assert [event.message_id for event in of_type(step, Delivered)] == ["first", "reply"]


def test_after_a_long_sleep_a_message_is_not_held_for_ever_either() -> None:
    channel = opened("bob", before_observation=False, sync_min_interval_ms=0)
    channel.receive(message("reply", "carol", T0 + 4, ("first",)), T0 + 11)
    awake = T0 + 20 * PARTICIPANT_LOST_MS
    events = tick_to(channel, awake + PARTICIPANT_LOST_MS + 60_000, awake)
    assert [event.message_id for event in events if isinstance(event, Delivered)] == ["reply"]


@PARTICIPANTS
def test_an_honest_id_that_a_stranger_names_first_is_waited_for_although_its_share_overflows(
    participant: str | None,
) -> None:
    """The stranger knows the id before the observer does, and floods its own share of the missing ids."""
    channel = opened(participant, before_observation=False, max_missing_per_sender=10)
    channel.receive(message("early", "mallory", T0 + 1, ("first",)), T0 + 10)
    flood = tuple(f"never {number}" for number in range(20))
    step = channel.receive(message("flood", "mallory", T0 + 2, flood), T0 + 11)
    assert "first" in [event.message_id for event in of_type(step, DependencyLost)]
    channel = SdsChannel.from_bytes(channel.to_bytes(), channel.config)
    assert delivered(channel, [copy_of_own("first"), message("first", "alice", T0 + 1)])[-2:] == ["first", OWN]
