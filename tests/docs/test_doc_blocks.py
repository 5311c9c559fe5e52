"""Every command and piece of code in README and docs/ is run by a test, or says why it cannot be."""

from __future__ import annotations

import ast
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from reliable_channel.cli import main
from reliable_channel.cli.app import build
from reliable_channel.config import Settings, load
from reliable_channel.config.fixed import FIXED, find_fixed
from tests.support.doc_blocks import COMMAND_LANGUAGES, ROOT, Block, blocks, pages

ALL = list(blocks())
WITH_COMMANDS = [block for block in ALL if block.language in COMMAND_LANGUAGES]
TO_RUN = [block for block in ALL if block.marker == "run"]
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
OURS = re.compile(r"^(?:\S+=\S*\s+)*(?:\.venv/bin/)?reliable-channel(?:\s|$)")


def our_arguments(command: str) -> list[str] | None:
    """What follows ``reliable-channel`` in a command line; None for other programs."""
    if not OURS.match(command):
        return None
    words = shlex.split(command)
    program = next(i for i, word in enumerate(words) if word.endswith("reliable-channel"))
    plain = words[program + 1 :]
    return plain[: next((i for i, word in enumerate(plain) if word in {"|", ">", "&", "&&", ";"}), len(plain))]


PROGRAM = typer.main.get_command(build())
OUR_COMMANDS = [
    pytest.param(arguments, id=f"{block} {' '.join(arguments)}"[:100])
    for block in WITH_COMMANDS
    if block.language != "python"
    for command in block.commands()
    if (arguments := our_arguments(command)) is not None
]


def test_there_is_something_to_check() -> None:
    assert len(WITH_COMMANDS) > 10
    assert len(OUR_COMMANDS) > 10


@pytest.mark.parametrize("block", WITH_COMMANDS, ids=str)
def test_every_block_is_run_by_a_test_or_says_why_not(block: Block) -> None:
    assert block.marker is not None, f"{block}: no marker above the block, see tests/support/doc_blocks.py"
    if block.marker == "example":
        assert len(block.about) > 10
    elif block.marker == "test":
        path, _, name = block.about.partition("::")
        source = (ROOT / path).read_text(encoding="utf-8")
        assert re.search(rf"^\s*def {re.escape(name or 'test_')}", source, re.MULTILINE)
        if block.language == "python":
            assert Path(block.page).name in source, f"{path} does not read the code in {block.page}"


@pytest.mark.parametrize("block", [block for block in ALL if block not in WITH_COMMANDS], ids=str)
def test_blocks_without_a_language_hold_no_commands(block: Block) -> None:
    if not block.language:
        first = {line.split(" ")[0] for line in block.text.splitlines()}
        assert not first & {"$", "make", "export", "reliable-channel", "spark-submit", ".venv/bin/reliable-channel"}


@pytest.mark.parametrize("arguments", OUR_COMMANDS)
def test_every_command_line_is_one_that_we_understand(arguments: list[str]) -> None:
    command: Any = PROGRAM
    rest = ["CONTENT" if "…" in word and not word.startswith("-") else word for word in arguments]
    context: Any = command.make_context("reliable-channel", list(rest))
    while getattr(command, "commands", None):
        left = [*context._protected_args, *context.args]
        assert left, "a group without a command"
        name, command, rest = command.resolve_command(context, left)
        context = command.make_context(name, list(rest), parent=context)


def name_unknown_word(command_line: str) -> str | None:
    """The first word of a command line within a sentence that is no command or option of ours; None if all are."""
    command: Any = PROGRAM
    known = {option for parameter in PROGRAM.params for option in parameter.opts} | {"--help"}
    for word in re.sub(r'"[^"]*"', "TEXT", command_line).replace("[", "").replace("]", "").split()[1:]:
        commands = getattr(command, "commands", {})
        if word in commands:
            command = commands[word]
            known |= {option for given in command.params for option in (*given.opts, *given.secondary_opts)}
        elif word.startswith("--"):
            if word.partition("=")[0] not in known:
                return word
        elif commands and not word.isupper() and word != "…":
            return word
    return None


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_within_sentences_exist(page: Path) -> None:
    inline = re.findall(r"`(reliable-channel [^`]*)`", page.read_text(encoding="utf-8"))
    assert {text: word for text in inline if (word := name_unknown_word(text))} == {}


EXAMPLES = [file.read_text(encoding="utf-8") for file in (ROOT / "docs" / "examples").glob("*.py")]


@pytest.mark.parametrize(
    "code", [*(b.text for b in ALL if b.language == "python"), *EXAMPLES], ids=lambda code: code.splitlines()[0]
)
def test_what_the_pages_import_is_on_the_page_of_the_python_interface(code: str) -> None:
    """The other names may change between versions."""
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    imports = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ImportFrom)]
    ours = {name.name for node in imports if (node.module or "").startswith("reliable_channel") for name in node.names}
    assert ours - set(re.findall(r"\w+", page)) == set()


WITH_CONSTANTS = {"security.md": "the list of limits", "tables.md": "generated"}


@pytest.mark.parametrize("page", [page for page in pages() if page.name not in WITH_CONSTANTS], ids=str)
def test_what_a_page_names_as_a_setting_can_be_set(page: Path) -> None:
    names = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)\b", page.read_text(encoding="utf-8"))
    assert set(names) & FIXED == set()


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_command_has_one_spelling_and_no_page_redirects_the_next(page: Path) -> None:
    """A run directory that one page exports would be where the next page writes, in the same shell."""
    text = page.read_text(encoding="utf-8")
    assert ".venv/bin/reliable-channel" not in text
    assert not re.search(r"^export RELIABLE_CHANNEL__PATHS__", text, re.MULTILINE)


@pytest.mark.parametrize("block", [b for b in WITH_COMMANDS if b.language != "python"], ids=str)
def test_every_make_target_exists(block: Block) -> None:
    for command in block.commands():
        words = command.split()
        if words[0] == "make":
            assert {word for word in words[1:] if "=" not in word} <= TARGETS


@pytest.mark.parametrize("block", [block for block in ALL if block.language == "yaml"], ids=str)
def test_pieces_of_configuration_are_valid(block: Block) -> None:
    given = yaml.safe_load(block.text)
    if set(given) <= set(Settings.model_fields):  # alert rules are YAML as well
        assert list(find_fixed(given)) == []  # what a file may not set
        load("local", **given)


@pytest.fixture(scope="module")
def own_tables(sample_tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sample tables: some commands write into them."""
    place = tmp_path_factory.mktemp("documented") / "tables"
    shutil.copytree(sample_tables, place)
    return place


@pytest.mark.parametrize("block", TO_RUN, ids=str)
def test_the_block_runs(
    block: Block,
    own_tables: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "build" / "demo").mkdir(parents=True)
    (tmp_path / "build" / "demo" / "tables").symlink_to(own_tables)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__DATA_DIR", str(own_tables))
    if block.language == "python":
        exec(compile(block.text, str(block), "exec"), {"__name__": "example"})  # noqa: S102  our own documents
        return
    for command in block.commands():
        if exported := re.fullmatch(r"export (\w+)=(.*)", command):
            monkeypatch.setenv(exported[1], exported[2])
            continue
        arguments = our_arguments(command)
        assert arguments is not None, f"{command} is no command of ours: mark the block as test or example"
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code in (0, 3), capsys.readouterr().err
