"""k of k + m: messages are delivered with the part that makes it enough, whatever order things come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.delivery import AwaitedMessages

PARTS = "abcdef"
MESSAGES = st.tuples(st.lists(st.sampled_from(PARTS), min_size=1, unique=True), st.integers(1, 4))
STEPS = st.lists(
    st.one_of(
        MESSAGES,  # a message is rebuilt
        st.sampled_from(PARTS),  # SDS delivers a segment
        st.tuples(st.just("also"), st.sampled_from(PARTS)),  # a further part of the newest message
    ),
    max_size=30,
)


@given(STEPS)
def test_a_message_is_taken_with_the_part_that_makes_it_enough(steps: list[object]) -> None:
    delivered: set[str] = set()
    awaited: AwaitedMessages[int, str, str, str] = AwaitedMessages(lambda part, _: part if part in delivered else None)
    parts: dict[int, list[str]] = {}
    required: dict[int, int] = {}
    taken: list[int] = []

    def enough(key: int) -> bool:
        return key not in taken and len(delivered.intersection(parts[key])) >= required[key]

    for number, step in enumerate(steps):
        match step:
            case str(part):
                delivered.add(part)
                expected = [key for key in parts if part in parts[key] and enough(key)]
                found = list(awaited.take_with(part))
                assert sorted(key for key, _, _ in found) == expected
                for key, message, had in found:
                    assert message == f"message {key}"
                    assert had == [one for one in parts[key] if one in delivered]
                taken += expected
            case ("also", str(part)):
                if parts and (key := max(parts)) in awaited and part not in parts[key]:
                    awaited.add_part(key, part)
                    parts[key].append(part)
                    if enough(key):
                        assert awaited.take(key) is not None
                        taken.append(key)
            case (list(those), int(count)):
                parts[number], required[number] = those, count
                awaited.add(number, f"message {number}", those, count)
                if enough(number):
                    assert awaited.take(number) == [one for one in those if one in delivered]
                    taken.append(number)
                else:
                    assert awaited.take(number) is None
        left = [key for key in parts if key not in taken]
        assert [key for key, _ in awaited.items()] == left
        assert {part for part in PARTS if awaited.awaits(part)} == {part for key in left for part in parts[key]}


def test_a_segment_of_another_message_under_the_same_id_does_not_count() -> None:
    awaited: AwaitedMessages[str, str, str, str] = AwaitedMessages(lambda part, of: part if of == "its own" else None)
    awaited.add("x", "another", ["a"], 1)
    awaited.add("y", "its own", ["a"], 1)
    assert [key for key, _, _ in awaited.take_with("a")] == ["y"]
    assert "x" in awaited and "y" not in awaited


def test_a_message_takes_the_place_of_one_under_the_same_key() -> None:
    awaited: AwaitedMessages[str, str, str, str] = AwaitedMessages(lambda part, _: part)
    awaited.add("x", "first", ["a", "b"], 2)
    awaited.add("x", "second", ["c"], 1)
    assert (len(awaited), awaited["x"], awaited.awaits("a")) == (1, "second", False)
    awaited.clear()
    assert (len(awaited), awaited.awaits("c")) == (0, False)
