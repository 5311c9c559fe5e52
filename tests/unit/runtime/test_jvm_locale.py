"""A JVM that this program starts works in every locale: it opens files of any name, and writes numbers in ASCII."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from reliable_channel.config import KafkaSettings, load
from reliable_channel.runtime import jars
from reliable_channel.runtime.broker import BrokerFiles, _format_properties, _prepare, free_port
from reliable_channel.runtime.java import java, jvm_environment
from reliable_channel.runtime.spark import local_conf

CONF = Path(__file__).parents[3] / "conf"


@pytest.mark.parametrize("locale", ["C", "POSIX", "xx_YY.UTF-8"], ids=["C", "POSIX", "one that is not installed"])
def test_a_jvm_reads_names_of_files_as_utf8_in_the_locale_c(locale: str) -> None:
    code = (
        "import subprocess; from reliable_channel.runtime.java import java, jvm_environment;"
        "command = [java(), '-XX:TieredStopAtLevel=1', '-XshowSettings:properties', '-version'];"
        "subprocess.run(command, env=jvm_environment(), check=True)"
    )
    python = [sys.executable, "-c", code]
    shown = subprocess.run(python, env=os.environ | {"LC_ALL": locale}, capture_output=True, text=True, check=True)
    assert "sun.jnu.encoding = UTF-8" in shown.stderr


def test_any_other_locale_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.ISO-8859-1")
    assert jvm_environment() == dict(os.environ)


def test_the_broker_finds_a_directory_of_any_name() -> None:
    """Java reads a file of properties as Latin-1."""
    written = _format_properties(BrokerFiles(Path("/srv/grün \\ 🙂")), KafkaSettings(), 9092, 9093)
    assert written.isascii()
    assert "log.dirs=/srv/gr\\u00fcn \\\\ \\ud83d\\ude42/data\n" in written


DRIVER, EXECUTOR = "spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"


def _options_of_jvms(run_dir: Path) -> dict[str, list[str]]:
    """What the JVM options of each program are, from its own settings or from our files for `spark-submit`."""
    settings = load("local", paths={"run_dir": str(run_dir)})
    files = BrokerFiles(run_dir)
    files.data.mkdir(parents=True)
    (files.data / "meta.properties").touch()  # formatted
    by_jvm = {"broker": _prepare(files, settings, free_port())[1:]}
    conf = local_conf(settings)
    given = {("session", name): conf[name] for name in (DRIVER, EXECUTOR)}
    for file in CONF.glob("spark-*.conf"):
        for line in file.read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition(" ")
            if name in (DRIVER, EXECUTOR):
                given[file.name, name] = value
    return by_jvm | {" ".join(names): shlex.split(options) for names, options in given.items()}


def test_every_jvm_speaks_english(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a Persian locale Delta looks for logs under names in Persian digits; in a Turkish one Kafka does not start."""
    monkeypatch.setattr(jars, "paths", lambda what, cache_dir: [])
    by_jvm = _options_of_jvms(tmp_path)
    assert len(by_jvm) == 1 + 2 + 8
    assert [name for name, options in by_jvm.items() if "-Duser.language=en" not in options] == []


def test_the_option_is_stronger_than_the_locale() -> None:
    command = [java(), "-XX:TieredStopAtLevel=1", "-Duser.language=en", "-XshowSettings:properties", "-version"]
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": "-Duser.language=fa"}  # as if the system said so
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "user.language = en" in shown.stderr
