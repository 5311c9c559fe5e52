"""Shares of senders in a bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.core.sds.shares import Shares


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(0, 200))
def test_what_is_restored_at_once_gives_way_like_what_was_added_one_by_one(owners: list[str], size: int) -> None:
    added, restored = Shares(5, 500), Shares(5, 500)
    keys: dict[str, list[str]] = {}
    for number, owner in enumerate(owners):
        added.add(f"{number}", owner, size)
        keys.setdefault(owner, []).append(f"{number}")
    restored.restore(keys, size)
    assert [restored.held_by(owner) for owner in "abc"] == [added.held_by(owner) for owner in "abc"]
    taken = [[shares.take_surplus() for _ in range(len(owners) + 1)] for shares in (added, restored)]
    assert taken[0] == taken[1]
