"""Finds a Java runtime, version 17 or newer."""

from __future__ import annotations

import locale
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from reliable_channel.core.errors import EnvironmentFault

OLDEST = 17
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=192m -XX:+UseSerialGC"
"""Options of a JVM that lives for some minutes: what the optimizing compiler costs would not come back (a third of all
CPU time). Without it the code cache is 48 MiB, which the plans of the verdicts fill; nothing is compiled any more
then."""
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Settings of a Spark session that lives for some minutes: plans are interpreted. To generate Java for each of them and
compile it twice, by Janino and by the JVM, takes a tenth of all CPU time."""
IN_ENGLISH = "-Duser.language=en"
"""The language of every JVM. In a Persian or Arabic locale Spark's Delta looks for logs under names with that script's
digits, and finds no table; in a Turkish one Kafka's broker does not start (it looks for ``CLASSİC``)."""
_REMEDY = f"Install a Java {OLDEST} runtime (Debian: openjdk-{OLDEST}-jre-headless), or set JAVA_HOME to one."


def java() -> str:
    """Return the path of ``java``: that of ``JAVA_HOME``, else the first on ``PATH``.

    Raises ``EnvironmentFault`` if there is none, or only one older than 17.
    """
    home = os.environ.get("JAVA_HOME")
    program = shutil.which(str(Path(home) / "bin" / "java")) if home else shutil.which("java")
    if program is None:
        where = f"JAVA_HOME is {home}, where bin/java does not exist." if home else "Java was not found."
        raise EnvironmentFault(where, _REMEDY)
    version = _read_version(program)
    if version < OLDEST:
        raise EnvironmentFault(f"{program} is Java {version}, too old for Spark and Kafka.", _REMEDY)
    return program


def jvm_environment() -> dict[str, str]:
    """Return the environment of this process for a JVM. In the locale C, which an ``LC_ALL`` that is not installed also
    means, a JVM opens no file whose name is not ASCII, and no option changes that; Python uses UTF-8 there."""
    return {**os.environ, **({"LC_ALL": "C.UTF-8"} if locale.setlocale(locale.LC_CTYPE) == "C" else {})}


@cache
def _read_version(path: str) -> int:
    """Return the feature release of a Java: 8 for ``1.8.0_292``, 17 for ``17.0.15``."""
    try:
        # In a session of its own: a signal to all processes of this one is for those that handle it.
        answer = subprocess.run(
            [path, "-version"], capture_output=True, text=True, timeout=60, check=False, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"{path} does not start: {error}.", _REMEDY) from None
    match = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        raise EnvironmentFault(f"{path} does not print its version.", _REMEDY)
    return int(match.group(1))
