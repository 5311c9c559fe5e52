"""A local S3 server (moto, in an environment of its own), and the jars with which Spark reaches it."""

from __future__ import annotations

import subprocess
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from reliable_channel.config.model import default_cache_dir
from reliable_channel.runtime.broker import HOST, free_port
from reliable_channel.runtime.jars import sha256
from tests.support.venvs import make_locked_venv
from tests.support.waiting import WAIT_S

HERE = Path(__file__).parents[1] / "object_store"
MAVEN = "https://repo1.maven.org/maven2"


@dataclass(frozen=True)
class ObjectStore:
    """``url``: where the server is; it has an empty ``bucket``. ``home``: where it is told what to hold up."""

    url: str
    home: Path

    def credentials(self, key: str = "test") -> dict[str, str]:
        """The environment of a process that uses the store, for Hadoop, Arrow and delta-rs alike. Any ``key`` does."""
        return {
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def spark_conf(self) -> dict[str, str]:
        """What Spark needs beside credentials and jars."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.internal.io.cloud"
            ".AbortableStreamBasedCheckpointFileManager",
        }

    @contextmanager
    def holding(self, name: str, *words: str) -> Iterator[Path]:
        """Hold up the requests with all these words (tests/object_store/server.py) while the block runs. The file is
        there as soon as there was one, and is its text."""
        hold = self.home / f"{name}.hold"
        (self.home / name).write_text(" ".join(words))
        (self.home / name).rename(hold)
        try:
            yield hold.with_suffix(".held")
        finally:
            hold.unlink()


@contextmanager
def object_store(home: Path) -> Iterator[ObjectStore]:
    """The server for the length of the block."""
    port = free_port()
    store = ObjectStore(f"http://{HOST}:{port}", home)
    with (home / "server.out").open("wb") as output:
        command = [
            str(make_locked_venv(HERE / "requirements.lock") / "python"),
            str(HERE / "server.py"),
            str(port),
            str(home),
        ]
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                bucket = urllib.request.Request(f"{store.url}/bucket", method="PUT")  # noqa: S310  on loopback
                urllib.request.urlopen(bucket, timeout=10).close()  # noqa: S310
                break
            except OSError:
                said = (home / "server.out").read_text()[-2000:]
                assert time.monotonic() < deadline and server.poll() is None, said
                time.sleep(0.2)
        yield store
    finally:
        server.terminate()
        server.wait(WAIT_S)


def s3_jars() -> list[Path]:
    """The jars of ``tests/object_store/jars.sha256``, kept in the user's cache, fetched those that are not there; each
    must have its digest. They are ``hadoop-aws`` and what it needs of the AWS SDK: 13 MB in place of 686."""
    home = Path(default_cache_dir()) / "test-jars"
    home.mkdir(parents=True, exist_ok=True)

    def jar(line: str) -> Path:
        digest, path = line.split()
        file = home / path.rpartition("/")[2]
        if not file.is_file() or sha256(file) != digest:
            with urllib.request.urlopen(f"{MAVEN}/{path}", timeout=WAIT_S) as answer:  # noqa: S310  a fixed host
                fresh = file.with_suffix(f".{id(line)}")
                fresh.write_bytes(answer.read())
            assert sha256(fresh) == digest, f"{path} does not have its digest"
            fresh.rename(file)
        return file

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(jar, (HERE / "jars.sha256").read_text().splitlines()))
