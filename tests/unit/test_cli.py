"""The console script: one sentence instead of a stack trace, the right exit code, and a fast ``--help``."""

from __future__ import annotations

import errno
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer
from deltalake.exceptions import DeltaError

from reliable_channel import __version__
from reliable_channel.cli import app as cli_app
from reliable_channel.cli import main
from reliable_channel.cli.app import PANELS, build
from reliable_channel.cli.commands import move_tables
from reliable_channel.config import load
from reliable_channel.core import sds, segmentation
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.runtime.faults import UNFORESEEN, print_fault
from tests.support.error_page import pattern_of


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    return int(ended.value.code or 0), out, err


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    """A console script of one command, which raises."""

    def with_fault(_command: str | None) -> typer.Typer:
        app = typer.Typer(pretty_exceptions_enable=False)

        @app.callback()
        def options(debug: bool = False) -> None:
            """Accepts --debug."""

        @app.command()
        def fail() -> None:
            raise error

        return app

    monkeypatch.setattr(cli_app, "build", with_fault)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--version") == (0, f"reliable-channel {__version__}\n", "")


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    groups = {group.name for group in build().registered_groups} | {
        command.name or command.callback.__name__ for command in build().registered_commands if command.callback
    }
    assert {"config", "kafka", "setup"} <= groups
    for name in sorted(filter(None, groups)):
        status, out, _ = run(capsys, name.replace("_", "-"), "--help")
        assert status == 0
        assert len(out.splitlines()) > 3
        assert "`" not in out, "a terminal shows no markup"


@pytest.mark.parametrize("command", ["dashboard", "status", "report"])
def test_tables_in_a_file_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str) -> None:
    """The dashboard waited for tables that could never come."""
    (tmp_path / "file").write_text("x")
    status, _, err = run(capsys, command, "--tables", str(tmp_path / "file"))
    assert status == 2 and "is a file" in " ".join(err.replace("│", "").split())


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from reliable_channel.cli.app import build; build(); "
        "print(*{'pyspark', 'pandas', 'pyarrow', 'kafka', 'deltalake', 'numpy', 'duckdb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_reading_the_configuration_loads_only_the_settings_of_the_protocol() -> None:
    code = (
        "import sys, reliable_channel.config; core = 'reliable_channel.core.'; "
        "print(*{core + 'sds.channel', core + 'sds.events', core + 'segmentation.reassembler'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("package", [sds, segmentation])
def test_every_public_name_of_a_package_is_what_a_module_of_it_defines(package: ModuleType) -> None:
    for name in package.__all__:
        assert not isinstance(getattr(package, name), ModuleType)


def test_config_show_prints_what_is_in_effect(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__KAFKA__BROKER__PORT", "4711")
    status, out, err = run(capsys, "config", "show")
    assert (status, err) == (0, "")
    assert "port: 4711" in out


def test_the_configuration_file_is_an_option(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("spark: {shuffle_partitions: 77}", encoding="utf-8")
    _, out, _ = run(capsys, "--config", str(file), "config", "show")
    assert "shuffle_partitions: 77" in out


def test_a_wrong_configuration_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__KAFKA__BROKER__PORT", "x")
    status, out, err = run(capsys, "config", "show")
    assert (status, out) == (2, "")
    assert err.startswith("reliable-channel: environment variable RELIABLE_CHANNEL__KAFKA__BROKER__PORT: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status"),
    [(EnvironmentFault("It broke.", "Mend it."), 1), (LocalError("You erred.", "Err not."), 2)],
)
def test_a_fault_is_cause_and_remedy_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    failing(monkeypatch, error)
    assert run(capsys, "fail") == (status, "", f"reliable-channel: {error}\n")


def test_debug_shows_the_stack_trace(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, EnvironmentFault("It broke.", "Mend it."))
    status, _, err = run(capsys, "--debug", "fail")
    assert status == 1
    assert "Traceback" in err
    assert err.endswith("reliable-channel: It broke. Mend it.\n")


def test_ctrl_c_exits_130_without_a_stack_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, KeyboardInterrupt())
    status, _, err = run(capsys, "fail")
    assert status == 130
    assert "Traceback" not in err


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_the_terminal_cannot_represent_is_printed_as_escapes(encoding: str) -> None:
    code = (
        "import reliable_channel.cli.app as cli\n"
        "def app(_command):\n"
        "    print('\\u2026 of a name that is not UTF-8: \\udcff')\n"
        "    raise SystemExit(0)\n"
        "cli.build = app; cli.run(['status'])"
    )
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    dots = "\u2026".encode(encoding, "backslashreplace")
    assert done.stdout.splitlines() == [dots + b" of a name that is not UTF-8: \\udcff"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("listen", "lobby", "--seconds", "inf"),
        ("send", "lobby", "hi", "--timeout", "inf"),
        ("simulate", "--minutes", "inf"),
    ],
)
def test_a_wait_without_end_is_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert "should be less than or equal to" in err


def test_standard_streams_that_are_closed_are_no_fault() -> None:
    code = (
        "import sys; sys.stdin = sys.stdout = sys.stderr = None\n"  # as with <&- >&- 2>&-
        "import reliable_channel.cli.app as cli\n"
        "def app(_command):\n"
        "    sys.stdout.isatty(), sys.stderr.isatty(), print('seen by nobody')\n"
        "    assert not sys.stdin.isatty() and sys.stdin.buffer.read() == b''\n"
        "    raise SystemExit(0)\n"
        "cli.build = app; cli.run(['status'])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, OSError(errno.ENOSPC, "No space left on device", "/data/x"))
    status, _, err = run(capsys, "fail")
    assert status == 1
    assert err.startswith("reliable-channel: The disk is full writing /data/x.")
    failing(monkeypatch, OSError(errno.ENOSPC, "No space left on device", "/copied/from", None, "/data/x"))
    assert run(capsys, "fail")[2].startswith("reliable-channel: The disk is full writing /data/x.")


def test_a_full_disk_is_one_line_also_when_a_delta_table_meets_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (DeltaError, OSError):
        failing(monkeypatch, kind("Generic LocalFileSystem error: No space left on device (os error 28)"))
        status, _, err = run(capsys, "fail")
        assert status == 1
        assert err.startswith("reliable-channel: Writing a table failed: the disk is full.")


def test_a_disk_that_delta_does_not_explain_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, OSError("Generic LocalFileSystem error"))  # of `maintain` on a full disk
    status, _, err = run(capsys, "fail")
    assert status == 1
    assert err.startswith("reliable-channel: The disk of the tables refused a request: Generic LocalFileSystem error.")


def test_a_file_in_place_of_a_directory_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    status, _, err = run(capsys, "notebooks", str(tmp_path / "file"))
    assert status == 2
    assert err.startswith(f"reliable-channel: {tmp_path / 'file'} is a file, not a directory. Choose another place")


def test_no_home_directory_is_one_line_and_only_where_it_is_needed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(_user: int) -> None:
        raise KeyError

    monkeypatch.setattr("pwd.getpwuid", refuse)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    status, _, err = run(capsys, "config", "show")
    assert status == 1
    assert err.startswith("reliable-channel: A home directory is unknown: yours, or that of a path with ~. Set HOME")
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__CACHE_DIR", str(tmp_path))
    assert run(capsys, "config", "show")[0] == 0


def test_a_current_directory_that_was_removed_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    status, _, err = run(capsys, "config", "show")
    assert status == 2
    assert err == "reliable-channel: The current directory was removed. Change to another one.\n"


def test_a_path_that_no_file_can_have_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "-c", "c" * 400, "config", "show")
    assert status == 2
    assert re.search(r"/c{100,}… is longer than a path may be\. Name a shorter one\.\n$", err)


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "--max-lag"),
        ("report", "--min-messages"),
        ("simulate", "--messages"),
        ("simulate", "--channels"),
        ("simulate", "--topics"),
        ("run", "--close-after-ms"),
    ],
)
def test_a_number_of_400_digits_is_wrong_usage(capsys: pytest.CaptureFixture[str], arguments: tuple[str, str]) -> None:
    status, _, err = run(capsys, *arguments, "9" * 400)
    assert status == 2
    assert f"Invalid value for '{arguments[1]}'" in err


@pytest.mark.parametrize("error", [OSError(errno.EIO, "I/O error"), KeyError("x\x1b[2J"), RuntimeError("")])
def test_what_nobody_foresaw_is_one_line_that_says_how_to_see_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failing(monkeypatch, error)
    status, out, err = run(capsys, "fail")
    assert (status, out) == (UNFORESEEN, "")
    assert err.startswith(f"reliable-channel: This should not have happened: {type(error).__name__}: ")
    assert "RELIABLE_CHANNEL_DEBUG=1" in err
    assert err.count("\n") == 1
    assert "\x1b" not in err


def test_the_environment_asks_for_stack_traces_as_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, RuntimeError("x\x1b[2J"))
    monkeypatch.setenv("RELIABLE_CHANNEL_DEBUG", "1")
    err = run(capsys, "fail")[2]
    assert "Traceback" in err and "\x1b" not in err


def test_a_class_of_a_jar_that_is_not_there_is_named_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    """What PySpark raises when a job is submitted without --jars, or with a damaged one."""
    assert print_fault(TypeError("'JavaPackage' object is not callable"), "ingest") == 1
    assert pattern_of("Jars that Spark does not find").fullmatch(capsys.readouterr().err.strip())


def test_an_unknown_command_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, "nonsense")
    assert status == 2
    assert "nonsense" in err


def test_the_help_is_in_groups_and_flags_show_no_type(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "-h")
    places = [out.index(f"─ {title} ─") for title in PANELS]
    assert places == sorted(places)
    assert "<bool>" not in out
    for name in ("report", "status", "run", "demo"):
        assert "<bool>" not in run(capsys, name, "-h")[1]


@pytest.mark.parametrize("command", ["report", "status", "dashboard", "sql", "alerts check", "store serve"])
def test_every_command_that_reads_tables_says_where_in_the_same_way(
    capsys: pytest.CaptureFixture[str], command: str
) -> None:
    _, out, _ = run(capsys, *command.split(), "--help")
    assert re.search(r"--tables +DIR", out)


@pytest.mark.parametrize(
    "command",
    [
        "report",
        "status",
        "maintain",
        "requeue",
        "sql SELECT",
        "alerts check",
        "what-if talk",
        "evidence bundle abc --out {}/bundle.zip",
    ],
)
def test_a_place_without_tables_is_named_as_such(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__DATA_DIR", str(tmp_path / "elsewhere"))
    status, _, err = run(capsys, *command.format(tmp_path).split())
    assert status == 1
    assert err.startswith(f"reliable-channel: There are no Delta tables under {tmp_path / 'elsewhere'}. ")


def test_the_shell_completes_commands() -> None:
    environment = {**os.environ, "_RELIABLE_CHANNEL_COMPLETE": "complete_bash", "COMP_WORDS": "reliable-channel re"}
    code = "from reliable_channel.cli import main; main([])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert {"report", "requeue", "rebuild"} <= set(done.stdout.split())


def test_log_lines_of_libraries_do_not_reach_the_terminal() -> None:
    code = (
        "import logging, sys; from reliable_channel.cli import main\n"
        "def app(_command):\n"
        "    logging.getLogger('kafka.net').warning('slow'); logging.getLogger('urllib3').error('retry')\n"
        "    logging.getLogger('reliable_channel.x').warning('ours')\n"
        "    raise SystemExit(0)\n"
        "import reliable_channel.cli.app as cli; cli.build = app; main(['status'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "slow" not in done.stderr
    assert "retry" not in done.stderr
    assert "ours" in done.stderr


def test_tables_of_a_run_directory_bring_their_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    settings = load("local")
    alone = move_tables(settings, tmp_path / "tables").paths
    (tmp_path / "checkpoints").mkdir()
    together = move_tables(settings, tmp_path / "tables").paths
    assert alone.checkpoint_dir != str(tmp_path / "checkpoints") == together.checkpoint_dir
