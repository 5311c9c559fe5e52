"""Downloads the JVM jars once with PySpark's Ivy, verifies them, and caches them. ``spark.jars.packages`` would resolve
them at every start, and download 38 where two are needed (docs/decisions.md, *The shape*).

``conf/ivy.xml`` lists them, ``conf/jars.sha256`` has their digests. A set of jars is in ``<cache>/jars/<digest of both
files>/{spark,kafka}/``. It is put there by one rename, complete and verified, so a change of either file creates a new
set, and concurrent set-ups do not interfere.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections import deque
from pathlib import Path

from reliable_channel.config.loading import find_shipped
from reliable_channel.core.errors import ConfigurationError, EnvironmentFault
from reliable_channel.runtime.java import java, jvm_environment
from reliable_channel.runtime.progress import progress

CONFIGURATIONS = ("spark", "kafka")
_IVY, _CHECKSUMS = "ivy.xml", "jars.sha256"
_UNREACHABLE = (
    *("unknownhost", "connection refused", "connect timed out", "network is unreachable", "no route to host"),
    *("connection reset", "ssl", "pkix", "server access error", "host not found"),
)


def checksums() -> dict[str, str]:
    """Read ``conf/jars.sha256``: ``spark/<jar>`` or ``kafka/<jar>`` → SHA-256 in hex."""
    lines = find_shipped(_CHECKSUMS).read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split(maxsplit=1) for line in lines if line.strip())}


def directory(cache_dir: str) -> Path:
    """Return the directory of this version's set of jars, whether it exists or not."""
    text = find_shipped(_IVY).read_bytes() + find_shipped(_CHECKSUMS).read_bytes()
    return Path(cache_dir) / "jars" / hashlib.sha256(text).hexdigest()[:16]


def paths(configuration: str, cache_dir: str) -> list[Path]:
    """Return the jars of ``spark`` or ``kafka``, sorted by name, after verifying their checksums (40 MB, less than 0.1
    s). Raises ``EnvironmentFault`` if set-up has not been run or a jar was changed since."""
    home = directory(cache_dir)
    expected = {name: digest for name, digest in checksums().items() if name.startswith(f"{configuration}/")}
    names = sorted(expected)
    if missing := [name for name in names if not (home / name).is_file()]:
        raise EnvironmentFault(
            f"{len(missing)} of {len(names)} jars are not in {home}.", "Run `reliable-channel setup` once."
        )
    _refuse_changed({name: home / name for name in names}, expected)
    return [home / name for name in names]


def verify(home: Path, expected: dict[str, str]) -> None:
    """Compare every jar under ``home`` with its checksum; raises ``EnvironmentFault`` naming what differs."""
    present = {f"{file.parent.name}/{file.name}": file for file in home.glob("*/*.jar")}
    _refuse_changed(present, expected)
    if missing := sorted(set(expected) - set(present)):
        raise EnvironmentFault(
            f"The registry did not provide {', '.join(missing)}.", "Try again, or use another mirror."
        )
    if unknown := sorted(set(present) - set(expected)):
        raise EnvironmentFault(
            f"{', '.join(unknown)} is not in conf/{_CHECKSUMS}.",
            "Use another mirror; CONTRIBUTING.md has how conf/ivy.xml is changed.",
        )


def _refuse_changed(present: dict[str, Path], expected: dict[str, str]) -> None:
    wrong = sorted(name for name, digest in expected.items() if name in present and sha256(present[name]) != digest)
    if wrong:
        raise EnvironmentFault(
            f"The checksum of {', '.join(wrong)} is not the one in conf/{_CHECKSUMS}.",
            "Run `reliable-channel setup` again; if it persists, do not trust the registry you use.",
        )


def sha256(file: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def ensure(cache_dir: str, ivy_settings: str | None = None) -> Path:
    """Return the directory of the verified set of jars, downloading it if it is not cached. ``ivy_settings``: an Ivy
    settings file.

    Raises ``EnvironmentFault``: no Java, registry not reachable, disk full, checksum wrong.
    """
    home, expected = directory(cache_dir), checksums()
    if home.is_dir():
        try:
            verify(home, expected)
        except EnvironmentFault:
            shutil.rmtree(home)  # a damaged cache is replaced
        else:
            return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix="resolving-") as temporary:
        fresh = Path(temporary) / "set"
        resolve(fresh, Path(cache_dir) / "ivy", len(expected), ivy_settings)
        verify(fresh, expected)
        try:
            fresh.rename(home)
        except OSError:
            if not home.is_dir():  # else a concurrent set-up was faster, with the same bytes
                raise
    shutil.rmtree(Path(cache_dir) / "ivy", ignore_errors=True)
    return home


def resolve(target: Path, ivy_cache: Path, expected: int | None, ivy_settings: str | None = None) -> None:
    """Let Ivy download into ``target/<configuration>/``, showing each jar; ``expected``: their number, if known."""
    import pyspark

    if ivy_settings and not Path(ivy_settings).is_file():
        raise ConfigurationError(f"paths.ivy_settings: {ivy_settings} does not exist.", "Name an Ivy settings file.")
    with tempfile.TemporaryDirectory(prefix="reliable-channel-") as temporary:
        ivy_file = Path(temporary) / _IVY
        ivy_file.write_bytes(find_shipped(_IVY).read_bytes())
        command = [java(), "-Djava.awt.headless=true", "-cp", str(Path(pyspark.__file__).parent / "jars" / "*")]
        command += ["org.apache.ivy.Main", "-ivy", str(ivy_file), "-cache", str(ivy_cache)]
        command += ["-settings", ivy_settings] if ivy_settings else []
        command += ["-confs", *CONFIGURATIONS, "-types", "jar", "bundle"]
        command += ["-retrieve", f"{target}/[conf]/[artifact]-[revision].[ext]"]
        _run_ivy(command, expected)


def _run_ivy(command: list[str], expected: int | None) -> None:
    tail: deque[str] = deque(maxlen=400)
    with (
        progress("Downloading the Spark and Kafka jars", expected) as advance,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Without what makes the JVM print more or load agents.
            env={key: value for key, value in jvm_environment().items() if key != "JAVA_TOOL_OPTIONS"},
        ) as ivy,
    ):
        try:
            done = 0
            for line in ivy.stdout or ():
                tail.append(line.rstrip())
                if line.lstrip().startswith("downloading "):
                    done += line.split()[1].endswith(".jar")
                    advance(done, line.split()[1].rsplit("/", 1)[-1])
            status = ivy.wait()
        except BaseException:  # Ctrl-C too: leaving the block waits for its end
            ivy.kill()
            raise
        if status != 0:
            raise _explain_output(tail)


def _explain_output(output: deque[str]) -> EnvironmentFault:
    """Reduce Ivy's output to one sentence."""
    text = "\n".join(output)
    lower = text.lower()
    if "no space left" in lower or "file too large" in lower or "quota exceeded" in lower:
        return EnvironmentFault(
            "The disk is full: the jars need 150 MB in the cache.", "Free some space, or set paths.cache_dir elsewhere."
        )
    if any(sign in lower for sign in _UNREACHABLE):
        line = next((line for line in output if any(sign in line.lower() for sign in _UNREACHABLE)), "")
        return EnvironmentFault(
            f"The Maven registry cannot be reached ({line.strip(': ').strip()[:160]}).",
            "Check network and proxy (JDK_JAVA_OPTIONS=-Dhttps.proxyHost=… -Dhttps.proxyPort=…), "
            "or name a mirror's Ivy settings file in paths.ivy_settings.",
        )
    line = next((line for line in output if "unresolved" in line.lower() or "exception" in line.lower()), text[-160:])
    return EnvironmentFault(f"The jars could not be resolved: {line.strip(': ').strip()[:200]}.", "Try again.")
