"""Tables and checkpoints may be anywhere: neither lake nor pipeline assumes a local disk (docs/scale-out.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import reliable_channel
from reliable_channel.config import PathSettings
from reliable_channel.lake.checkpoints import filesystem

MODULES = sorted(
    module
    for folder in ("lake", "pipeline")
    for module in (Path(reliable_channel.__file__).parent / folder).rglob("*.py")
    # The first swaps directories where they are local, and refuses to where they are not. The second reads the
    # machine's key files. The third keeps a cache in the run's directory, which is always on the driver's own disk, or
    # where Spark keeps an application's files on the machine of an executor. The fourth locks checkpoints on a disk.
    if module.stem not in {"rebuild", "decryption", "file_index", "one_driver"}
)
LOCAL = {"pathlib", "shutil", "tempfile", "glob"}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_no_module_of_the_pipeline_touches_local_files(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            assert not {alias.name.partition(".")[0] for alias in node.names} & LOCAL
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").partition(".")[0] not in LOCAL
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "open"


@pytest.mark.parametrize("scheme", ["s3a", "s3", "gs", "abfss", "hdfs"])
def test_tables_and_checkpoints_keep_their_uri(scheme: str) -> None:
    paths = PathSettings(data_dir=f"{scheme}://bucket/tables/", checkpoint_dir=f"{scheme}://bucket/checkpoints")
    assert paths.table("sds_messages") == f"{scheme}://bucket/tables/sds_messages"
    assert paths.checkpoint("ack") == f"{scheme}://bucket/checkpoints/ack"


def test_checkpoints_on_s3a_are_read_as_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # nothing is asked, and nobody would answer
    files, path = filesystem("s3a://bucket/checkpoints/ack")
    assert (files.type_name, path) == ("s3", "bucket/checkpoints/ack")
