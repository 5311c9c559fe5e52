"""The file of open hashes: what a micro-batch reads is what the ones before it wrote, also when it is run again."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.open_hashes import KEPT, HashDue, OpenHashes, read_open_hashes
from tests.support.examples import examples

HASHES = [bytes([number]) * 32 for number in range(4)]
PLACES = [("waku.envelopes", 0), ("waku.envelopes", 1), ("other", 0)]
Dues = dict[bytes, dict[tuple[str, int], int]]

CHANGES = st.dictionaries(
    st.sampled_from(HASHES), st.dictionaries(st.sampled_from(PLACES), st.integers(1, 99), max_size=2), max_size=3
)
"""Of one micro-batch: hash → its due times by Kafka partition; none where its state is gone."""


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    return PathSettings(run_dir=str(tmp_path))


def changes_of(dues: Dues) -> list[HashDue]:
    return [HashDue(hash_, [(*place, at) for place, at in here.items()]) for hash_, here in dues.items()]


def write(paths: PathSettings, batch_id: int, dues: Dues) -> None:
    read_open_hashes(paths, batch_id - 1).apply(changes_of(dues)).write(paths, batch_id)


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batches=st.lists(CHANGES, min_size=1, max_size=6), again=st.booleans())
def test_every_micro_batch_finds_what_the_ones_before_it_left(
    batches: list[Dues], again: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    paths = PathSettings(run_dir=str(tmp_path_factory.mktemp("run")))
    expected: Dues = {}
    for number, dues in enumerate(batches):
        write(paths, number, dues)
        if again:
            write(paths, number, dues)
        expected = {hash_: here for hash_, here in {**expected, **dues}.items() if here}
        open_hashes = read_open_hashes(paths, number)
        assert open_hashes.select_open(HASHES) == expected.keys()
        assert open_hashes.count == sum(len(here) for here in expected.values())
        assert open_hashes.next_due_us == min((at for here in expected.values() for at in here.values()), default=None)
        for place in PLACES:
            due = {hash_ for hash_, here in expected.items() if here.get(place, 100) <= 50}
            assert sorted(open_hashes.due(place, 50)) == sorted(due)


def test_old_files_are_removed_and_those_of_a_replay_stay(paths: PathSettings) -> None:
    for number in range(3 * KEPT):
        write(paths, number, {HASHES[0]: {PLACES[0]: number}})
    files = {int(file.stem) for file in Path(paths.checkpoint("reassembly"), "open_hashes").iterdir()}
    assert files == set(range(2 * KEPT, 3 * KEPT))


def test_a_missing_file_is_an_error_and_no_empty_state(paths: PathSettings) -> None:
    assert read_open_hashes(paths, -1).count == 0
    with pytest.raises(EnvironmentFault, match=r"lacks .*open_hashes/6\.arrow.*rebuild"):
        read_open_hashes(paths, 6)


def test_what_is_read_is_bounded_by_what_is_open(paths: PathSettings) -> None:
    """A file must not grow with the number of micro-batches."""
    for number in range(50):
        write(paths, number, {HASHES[number % 4]: {PLACES[0]: number}})
    directory = Path(paths.checkpoint("reassembly"), "open_hashes")
    assert max(file.stat().st_size for file in directory.iterdir()) < 4_000
    assert OpenHashes().select_open(HASHES) == set()
