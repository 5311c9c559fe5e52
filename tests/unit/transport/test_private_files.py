"""What holds other people's messages is its owner's alone, whoever made it first and whatever the umask is."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reliable_channel.channel import SqlitePersistence
from reliable_channel.cli import main
from reliable_channel.messaging.schema import open_database
from reliable_channel.transport.private_files import private_directory, private_file
from reliable_channel.transport.store.index import EnvelopeIndex


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0o000)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_files_and_directories_are_the_owners(tmp_path: Path) -> None:
    private_file(tmp_path / "deep" / "file")
    private_directory(tmp_path / "other")
    assert [mode(tmp_path / name) for name in ("deep", "deep/file", "other")] == [0o700, 0o600, 0o700]


def test_those_that_are_there_lose_what_is_too_much_and_nothing_else(tmp_path: Path) -> None:
    file, directory, strict = tmp_path / "file", tmp_path / "directory", tmp_path / "strict"
    for path, given in ((file, 0o644), (strict, 0o400)):
        path.write_text("kept")
        path.chmod(given)
    directory.mkdir(mode=0o755)
    private_file(file)
    private_file(strict)
    private_directory(directory)
    assert [mode(path) for path in (file, strict, directory)] == [0o600, 0o400, 0o700]
    assert file.read_text() == "kept"


@pytest.mark.parametrize(
    "opened",
    [
        lambda path: open_database(path).close(),
        lambda path: SqlitePersistence(path).close(),
        lambda path: EnvelopeIndex(path, "table").close(),
    ],
    ids=["messages", "channels", "store index"],
)
@pytest.mark.parametrize("existed", [True, False])
def test_databases_are_their_owners(opened: Callable[[Path], None], existed: bool, tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.db"
    if existed:
        path.parent.mkdir()
        path.touch(mode=0o644)
    opened(path)
    assert [mode(file) for file in path.parent.glob("x.db*")] == [0o600] * len(list(path.parent.glob("x.db*")))


def test_a_command_takes_the_permissions_of_others_from_all_that_it_makes() -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert os.umask(0o000) == 0o077
