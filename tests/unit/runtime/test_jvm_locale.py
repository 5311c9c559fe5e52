"""A JVM that this program starts opens files of any name, whatever the locale."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from reliable_channel.config import KafkaSettings
from reliable_channel.runtime.broker import BrokerFiles, _format_properties
from reliable_channel.runtime.java import java, jvm_environment


@pytest.mark.parametrize("locale", ["C", "POSIX"])
def test_a_jvm_reads_names_of_files_as_utf8_in_the_locale_c(locale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", locale)
    command = [java(), "-XX:TieredStopAtLevel=1", "-XshowSettings:properties", "-version"]
    shown = subprocess.run(command, env=jvm_environment(), capture_output=True, text=True, check=True)
    assert "sun.jnu.encoding = UTF-8" in shown.stderr


def test_any_other_locale_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.ISO-8859-1")
    assert jvm_environment() == dict(os.environ)


def test_the_broker_finds_a_directory_of_any_name() -> None:
    """Java reads a file of properties as Latin-1."""
    written = _format_properties(BrokerFiles(Path("/srv/grün \\ 🙂")), KafkaSettings(), 9092, 9093)
    assert written.isascii()
    assert "log.dirs=/srv/gr\\u00fcn \\\\ \\ud83d\\ude42/data\n" in written
