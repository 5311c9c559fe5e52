"""``make setup``: virtual environment, locked dependencies, jars. Standard library only: it runs before all of them.

Done once; a stamp in the environment holds the digest of what it was made from, so a second run repeats nothing and a
changed lock installs again. A failure is one sentence with cause and remedy.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(os.environ.get("RELIABLE_CHANNEL_VENV") or ROOT / ".venv").absolute()
PYTHON, PIP = VENV / "bin" / "python", VENV / "bin" / "pip"
STAMP = VENV / "reliable-channel.stamp"
LOCKS = ("requirements-build.lock", "requirements.lock")
OLDEST_JAVA = 17

NO_SPACE = re.compile(r"no space left|file too large|disk quota", re.IGNORECASE)
NO_REGISTRY = re.compile(
    r"connection refused|name resolution|newconnectionerror|max retries|read timed out|network is unreachable"
    r"|no matching distribution|could not find a version|ssl(error|certverification)|proxyerror"
    r"|connection(reset|aborted)",
    re.IGNORECASE,
)
BAD_HASH = re.compile(r"do not match the hashes", re.IGNORECASE)


def fail(cause: str, remedy: str) -> NoReturn:
    sys.stderr.write(f"setup: {cause} {remedy}\n")
    sys.exit(1)


def check_java() -> None:
    """Before anything is downloaded. The package checks again, with the same words, whenever it starts Java."""
    remedy = (
        f"Install a Java {OLDEST_JAVA} runtime (Debian: openjdk-{OLDEST_JAVA}-jre-headless), or set JAVA_HOME to one."
    )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if java is None:
        fail(f"JAVA_HOME is {home}, where bin/java does not exist." if home else "Java was not found.", remedy)
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        fail(f"{java} does not print its version.", remedy)
    if int(version.group(1)) < OLDEST_JAVA:
        fail(f"{java} is Java {version.group(1)}, too old for Spark and Kafka.", remedy)


def digest() -> str:
    """What the environment is made from: the locks, the project file, the interpreter, the place."""
    made_from = hashlib.sha256(f"{sys.version_info[:3]} {sys.base_prefix} {ROOT}".encode())
    for name in (*LOCKS, "pyproject.toml"):
        made_from.update((ROOT / name).read_bytes())
    return made_from.hexdigest()


def create_environment() -> None:
    """Create the environment, or keep one of the same Python: pip then installs only what differs. The programs in an
    environment that was moved or copied run the Python of its old place."""
    code = "import sys; print(sys.version_info[:3], sys.base_prefix)"
    same = (
        PYTHON.exists()
        and PIP.exists()
        and str(VENV) in PIP.read_text()
        and run([str(PYTHON), "-c", code], None).output == f"{sys.version_info[:3]} {sys.base_prefix}"
    )
    done = run([sys.executable, "-m", "venv", *([] if same else ["--clear"]), str(VENV)], None)
    if done.status == 0:
        return
    if NO_SPACE.search(done.output):
        fail(f"The disk is full: {VENV} cannot be written.", "Free 1.5 GB and run make setup again.")
    if os.pathsep in str(VENV):
        fail(f"No virtual environment can be in {VENV}: a {os.pathsep} separates paths.", "Move the checkout.")
    fail(
        "Python's venv module does not work here.",
        f"Install it (Debian: python{sys.version_info[0]}.{sys.version_info[1]}-venv) and run make setup again.",
    )


class Done:
    """How a command ended and the last it printed."""

    def __init__(self, status: int, output: str) -> None:
        self.status = status
        self.output = output


def run(command: list[str], title: str | None, total: int = 0) -> Done:
    """Run a command; with a title, show what pip is at: a counter on a terminal, a line every ten seconds elsewhere."""
    tail: deque[str] = deque(maxlen=200)
    terminal, last, done = sys.stderr.isatty(), 0.0, 0
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        for line in process.stdout or ():
            tail.append(line.rstrip())
            if title is None:
                continue
            done += line.startswith("Collecting ")
            now = time.monotonic()
            if terminal:
                sys.stderr.write(f"\r\033[K{title} [{min(done, total)}/{total}] {line.strip()[:70]}")
                sys.stderr.flush()
            elif now - last > 10:
                last = now
                sys.stderr.write(f"{title} [{min(done, total)}/{total}] {line.strip()[:90]}\n")
    if terminal and title is not None:
        sys.stderr.write("\r\033[K")
    return Done(process.returncode, "\n".join(tail))


def install(arguments: list[str], title: str, total: int = 0) -> None:
    command = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off"]
    command.append("--no-user")  # which some systems' pip.conf or PIP_USER asks for, and no virtual environment has
    if not sys.dont_write_bytecode:  # else nobody would ever compile them
        command.append("--no-compile")  # a third of pip's CPU time; Python compiles what it imports
    done = run([*command, *arguments], title, total)
    if done.status == 0:
        return
    if NO_SPACE.search(done.output):
        fail(f"The disk is full while installing into {VENV}.", "Free 1.5 GB and run make setup again.")
    if BAD_HASH.search(done.output):
        fail(
            "A package does not have the hash in requirements.lock.", "Do not trust the registry you use; try another."
        )
    if NO_REGISTRY.search(done.output):
        fail(
            "The Python package registry cannot be reached.",
            "Check network and proxy (HTTPS_PROXY, PIP_INDEX_URL) and run make setup again.",
        )
    sys.stderr.write(done.output + "\n")
    fail("pip failed, see above.", "Run make setup again; if it persists, report it with these lines.")


def main() -> None:
    check_java()
    wanted = digest()
    if not (STAMP.is_file() and STAMP.read_text() == wanted and PYTHON.exists()):
        started = time.monotonic()
        version = ".".join(map(str, sys.version_info[:3]))
        sys.stderr.write(f"Setting up {VENV} with Python {version}: a few minutes, once\n")
        create_environment()
        # No build isolation: what builds the packages is locked like the rest.
        for name in LOCKS:
            total = len(re.findall(r"^\S+==", (ROOT / name).read_text(), re.MULTILINE))
            install(["--no-build-isolation", "--require-hashes", "-r", name], "Installing the dependencies", total)
        install(["--no-build-isolation", "--no-deps", "--editable", "."], "Installing reliable-channel")
        STAMP.write_text(wanted)
        sys.stderr.write(f"Environment ready in {time.monotonic() - started:.0f} s\n")
    sys.stderr.flush()
    jars = subprocess.run([str(VENV / "bin" / "reliable-channel"), "setup"], cwd=ROOT, check=False)
    sys.exit(jars.returncode)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.stderr.write("\nsetup: stopped; run make setup again to continue.\n")
        sys.exit(130)
    except OSError as error:
        if error.errno in (28, 122, 27):  # ENOSPC, EDQUOT, EFBIG
            fail("The disk is full.", "Free 1.5 GB and run make setup again.")
        raise
