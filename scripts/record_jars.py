"""Write conf/jars.sha256 anew after a change of conf/ivy.xml: ``python -m scripts.record_jars``; review the change."""

from __future__ import annotations

import tempfile
from pathlib import Path

from reliable_channel.config import load
from reliable_channel.runtime.jars import resolve, sha256

TARGET = Path(__file__).parents[1] / "conf" / "jars.sha256"

with tempfile.TemporaryDirectory(prefix="reliable-channel-") as temporary:
    fresh = Path(temporary) / "set"
    resolve(fresh, Path(temporary) / "ivy", None, load().paths.ivy_settings)
    lines = [f"{sha256(file)}  {file.parent.name}/{file.name}\n" for file in sorted(fresh.glob("*/*.jar"))]
TARGET.write_text("".join(lines), encoding="utf-8")
print(f"{len(lines)} checksums written to {TARGET}")
