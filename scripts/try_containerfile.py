"""Carries out the steps of ``deploy/Containerfile`` in a clean Debian root, where no image can be pulled.

``sudo python scripts/try_containerfile.py ROOT [CONTAINERFILE]``: ROOT is an empty folder for the stages. Needs
``debootstrap`` and root. Debian's own Python stands for that of the base image. Instructions are those that our file
uses; another one ends the run. In the end the program answers as the user of the image.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CONTEXT = Path(__file__).resolve().parents[1]
SUITE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
START = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
PASSED_ON = ("PIP_CERT", "PIP_INDEX_URL", "SSL_CERT_FILE", "HTTPS_PROXY", "HTTP_PROXY")
"""What a network may ask for; the files are those of the root, whose base may be given."""
PROBES = (["reliable-channel", "--version"], ["reliable-channel", "config", "show"], ["java", "-version"])


def read_instructions(text: str) -> Iterator[tuple[str, str]]:
    """The instructions with their arguments, continued lines joined, without comments."""
    lines = (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n", " ", "\n".join(lines)).splitlines():
        name, _, arguments = line.strip().partition(" ")
        yield name.upper(), arguments.strip()


class Stage:
    """One stage: a root of its own, its environment, working directory and user."""

    def __init__(self, base: Path, root: Path) -> None:
        subprocess.run(["cp", "-a", "--reflink=auto", str(base), str(root)], check=True)
        self.root, self.directory, self.user = root, "/", "0:0"
        self.environment = START | {name: os.environ[name] for name in PASSED_ON if name in os.environ}

    def run(self, command: list[str]) -> None:
        """Run a command in the root, as its user. Raises ``CalledProcessError``."""
        inside = f"mkdir -p {self.directory} && cd {self.directory} && exec {shlex.join(command)}"
        # Java's package needs /proc, apt a terminal; the mounts end with the command.
        mounts = f"mount -t proc proc {self.root}/proc && mount --rbind /dev {self.root}/dev"
        chroot = ["chroot", f"--userspec={self.user}", str(self.root), "/bin/sh", "-c", inside]
        apart = ["unshare", "--mount", "--pid", "--fork", "/bin/sh", "-c", f"{mounts} && exec {shlex.join(chroot)}"]
        print("+", shlex.join(command), flush=True)
        home = {"HOME": "/root" if self.user == "0:0" else self.directory}
        subprocess.run(apart, check=True, env={**home, **self.environment})

    def set_environment(self, arguments: str) -> None:
        """ENV."""
        for pair in shlex.split(arguments):
            key, _, value = pair.partition("=")
            self.environment[key] = value.replace("$PATH", self.environment["PATH"])

    def copy(self, arguments: str, stages: dict[str, Stage]) -> None:
        """COPY, with ``--from`` and ``--chown``."""
        words = shlex.split(arguments)
        options = dict(word[2:].split("=", 1) for word in words if word.startswith("--"))
        *sources, target = [word for word in words if not word.startswith("--")]
        origin = stages[options["from"]].root if "from" in options else CONTEXT
        target_path = self.root / (Path(self.directory) / target).relative_to("/")
        for source in sources:
            into = origin / source.lstrip("/")
            if into.is_dir():
                shutil.copytree(into, target_path, symlinks=True, dirs_exist_ok=True)
            else:
                (target_path if target.endswith("/") else target_path.parent).mkdir(parents=True, exist_ok=True)
                shutil.copy2(into, target_path)
        if "chown" in options:
            self.run(["chown", "-R", options["chown"], "/" + str(target_path.relative_to(self.root))])


def prepare_base(root: Path) -> Path:
    """Make the root that stands for the base image, once."""
    base = root / "base"
    if not base.is_dir():
        subprocess.run(["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(base)], check=True)
        (base / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    return base


def build_stages(root: Path, file: Path) -> Stage:
    """Carry out all instructions; returns the last stage."""
    base, stages = prepare_base(root), dict[str, Stage]()
    for name, arguments in read_instructions(file.read_text(encoding="utf-8")):
        match name:
            case "FROM":
                label = arguments.partition(" AS ")[2] or f"stage-{len(stages)}"
                stages[label] = stage = Stage(base, root / label)
            case "RUN":
                stage.run(["/bin/sh", "-c", arguments])
            case "COPY":
                stage.copy(arguments, stages)
            case "ENV":
                stage.set_environment(arguments)
            case "WORKDIR":
                stage.directory = arguments
            case "USER":
                stage.user = arguments
            case "VOLUME" | "ENTRYPOINT" | "CMD":
                pass
            case _:
                raise SystemExit(f"{file}: this script does not know {name}.")
    return stage


if __name__ == "__main__":
    image = build_stages(
        Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else CONTEXT / "deploy" / "Containerfile"
    )
    for probe in PROBES:
        image.run(probe)
