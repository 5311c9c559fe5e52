"""Shares of senders in a bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.shares import Shares, list_surplus

MAX_ENTRIES, MAX_BYTES = 5, 500
calls = st.lists(st.one_of(st.tuples(st.sampled_from("abcd"), st.integers(0, 200)), st.none()), max_size=60)
"""An owner that gets a key of some size, or ``None``: the oldest key of all is removed."""


def play(shares: Shares[int], calls: list[tuple[str, int] | None], names: dict[str, str]) -> list[int | None]:
    """The keys that are lost, one after every call."""
    lost: list[int | None] = []
    held: dict[int, str] = {}
    for number, call in enumerate(calls):
        if call is not None:
            held[number] = names[call[0]]
            shares.add(number, held[number], call[1])
        elif held:
            oldest = next(iter(held))
            shares.remove(oldest, held.pop(oldest))
        key = shares.take_surplus()
        lost.append(key)
        if key is not None:
            del held[key]
    return lost


@given(calls)
def test_who_holds_most_loses_its_oldest_key_and_among_equals_the_oldest_of_all(
    calls: list[tuple[str, int] | None],
) -> None:
    lost = play(Shares(MAX_ENTRIES, MAX_BYTES), calls, {name: name for name in "abcd"})
    unit = MAX_BYTES // MAX_ENTRIES
    model: dict[int, tuple[str, int]] = {}
    for number, call in enumerate(calls):
        if call is not None:
            model[number] = call[0], max(unit, call[1])
        elif model:
            del model[next(iter(model))]
        expected = None
        if sum(weight for _, weight in model.values()) > MAX_BYTES:
            held = {name: sum(weight for owner, weight in model.values() if owner == name) for name in "abcd"}
            expected = next(key for key, (owner, _) in model.items() if held[owner] == max(held.values()))
            del model[expected]
        assert lost[number] == expected


@given(calls, st.permutations("wxyz"))
def test_names_decide_nothing(calls: list[tuple[str, int] | None], names: list[str]) -> None:
    renamed = dict(zip("abcd", names, strict=True))
    assert play(Shares(MAX_ENTRIES, MAX_BYTES), calls, renamed) == play(
        Shares(MAX_ENTRIES, MAX_BYTES), calls, {name: name for name in "abcd"}
    )


def test_among_senders_that_hold_equally_much_the_oldest_key_is_lost_and_not_the_first_name() -> None:
    shares: Shares[int] = Shares(MAX_ENTRIES, MAX_BYTES)
    for key in range(6):
        shares.add(key, "ba"[key % 2], 1)
    assert shares.take_surplus() == 0


@given(st.lists(st.sampled_from("abcd"), min_size=1, max_size=60), st.integers(0, 30))
def test_what_is_cut_in_bulk_costs_whoever_has_most_of_the_older_half(owners: list[str], limit: int) -> None:
    keys = [*range(len(owners))]
    gone = list_surplus(keys, owners, limit) if len(keys) > limit else []
    assert len(keys) - len(gone) == min(len(keys), limit)
    assert all(key < len(keys) - limit // 2 for key in gone), "the newer half stays"
    for owner in {*owners}:
        own = [key for key in keys if owners[key] == owner]
        lost = [key for key in own if key in gone]
        assert lost == own[: len(lost)], "the oldest"
        if len(own) <= (limit - limit // 2) // len({*owners}):
            assert not lost
