"""The JVM parts: what is wrong with them, or with reaching them, is one sentence with a remedy."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from reliable_channel.config.loading import find_shipped
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.runtime import jars
from reliable_channel.runtime.java import java

CLOSED_REGISTRY = """\
<ivysettings>
  <settings defaultResolver="closed"/>
  <resolvers><ibiblio name="closed" m2compatible="true" root="http://127.0.0.1:9/maven2/"/></resolvers>
</ivysettings>
"""


def test_every_direct_dependency_has_a_checksum() -> None:
    names = set(jars.checksums())
    for dependency in ElementTree.fromstring(find_shipped("ivy.xml").read_bytes()).iter("dependency"):  # noqa: S314 - ours
        configuration = dependency.attrib["conf"].split("->")[0]
        assert f"{configuration}/{dependency.attrib['name']}-{dependency.attrib['rev']}.jar" in names


def test_checksums_are_sha256() -> None:
    assert {len(bytes.fromhex(digest)) for digest in jars.checksums().values()} == {32}


def test_jars_that_were_not_set_up_are_named_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"6 of 6 jars .* Run `reliable-channel setup` once"):
        jars.paths("spark", str(tmp_path))


@pytest.fixture
def a_set(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A set of one jar, with its checksum."""
    (tmp_path / "spark").mkdir()
    (tmp_path / "spark" / "a-1.jar").write_bytes(b"jar")
    return tmp_path, {"spark/a-1.jar": jars.sha256(tmp_path / "spark" / "a-1.jar")}


def test_a_right_set_is_accepted(a_set: tuple[Path, dict[str, str]]) -> None:
    jars.verify(*a_set)


def test_a_jar_that_was_changed_after_set_up_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = jars.directory(str(tmp_path)) / "spark" / "a-1.jar"
    jar.parent.mkdir(parents=True)
    jar.write_bytes(b"jar")
    digest = jars.sha256(jar)
    monkeypatch.setattr(jars, "checksums", lambda: {"spark/a-1.jar": digest})
    assert jars.paths("spark", str(tmp_path)) == [jar]
    jar.write_bytes(b"rat")
    with pytest.raises(EnvironmentFault, match=r"checksum of spark/a-1\.jar"):
        jars.paths("spark", str(tmp_path))


def test_a_changed_jar_is_refused(a_set: tuple[Path, dict[str, str]]) -> None:
    home, expected = a_set
    (home / "spark" / "a-1.jar").write_bytes(b"other")
    with pytest.raises(EnvironmentFault, match=r"checksum of spark/a-1\.jar"):
        jars.verify(home, expected)


def test_a_missing_jar_is_refused(a_set: tuple[Path, dict[str, str]]) -> None:
    home, expected = a_set
    with pytest.raises(EnvironmentFault, match=r"did not provide kafka/b-1\.jar"):
        jars.verify(home, expected | {"kafka/b-1.jar": "00"})


def test_an_unexpected_jar_is_refused(a_set: tuple[Path, dict[str, str]]) -> None:
    home, expected = a_set
    (home / "spark" / "c-1.jar").write_bytes(b"more")
    with pytest.raises(EnvironmentFault, match=r"spark/c-1\.jar is not in"):
        jars.verify(home, expected)


def test_a_registry_that_cannot_be_reached_is_one_sentence(tmp_path: Path) -> None:
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(CLOSED_REGISTRY, encoding="utf-8")
    with pytest.raises(EnvironmentFault, match=r"Maven registry cannot be reached .* Check network and proxy") as fault:
        jars.ensure(str(tmp_path / "cache"), str(settings))
    assert "\n" not in str(fault.value)
    assert list((tmp_path / "cache" / "jars").iterdir()) == []


def test_ivy_settings_that_do_not_exist_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"paths\.ivy_settings"):
        jars.resolve(tmp_path / "set", tmp_path / "ivy", None, str(tmp_path / "none.xml"))


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    """No file may grow beyond 100 bytes: what a full disk does to a set-up, without filling one."""
    done = subprocess.run(
        [sys.executable, "-m", "reliable_channel", "setup"],
        env=os.environ | {"RELIABLE_CHANNEL__PATHS__CACHE_DIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)),
    )
    assert done.returncode == 1
    assert done.stderr.startswith("reliable-channel: The disk is full")
    assert done.stderr.count("\n") == 1


def test_no_java_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=r"Java was not found\. Install a Java 17"):
        java()


def test_a_java_home_without_java_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(EnvironmentFault, match=f"JAVA_HOME is {tmp_path}"):
        java()


@pytest.mark.parametrize(
    ("version", "refused"),
    [
        ("1.8.0_292", "Java 8, too old"),
        ("11.0.2", "Java 11, too old"),
        ("17.0.15", None),
        ("21", None),
        ("25-ea", None),
    ],
)
def test_the_version_of_java_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str, refused: str | None
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    script = tmp_path / "java"
    script.write_text(
        f"#!{shutil.which('sh')}\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n", encoding="utf-8"
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) + os.pathsep + os.environ["PATH"])
    if refused is None:
        assert java() == str(script)
    else:
        with pytest.raises(EnvironmentFault, match=refused):
            java()


def test_ctrl_c_while_java_is_asked_for_its_version_is_no_fault_of_java(tmp_path: Path) -> None:
    """A terminal sends it to all processes of a command. Jobs that note it, and go on, said that Java is broken."""
    script = tmp_path / "bin" / "java"
    script.parent.mkdir()
    answer = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
    script.write_text(f"#!{shutil.which('sh')}\nkill -s INT -- -$PPID\n{answer}\n", encoding="utf-8")
    script.chmod(0o755)
    code = (
        "import signal; from reliable_channel.runtime.java import java\n"
        "signal.signal(signal.SIGINT, lambda *_: None); print(java())"
    )
    environment = {**os.environ, "JAVA_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        start_new_session=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (str(script), "")
