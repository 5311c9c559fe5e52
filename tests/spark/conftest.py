"""What the tests of the shared Spark session share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from reliable_channel.cli import main
from reliable_channel.config import Settings


@pytest.fixture
def shell(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The command line on the shared session, with the settings in a file as a user has them: what a command prints."""

    @contextmanager
    def shared(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("reliable_channel.runtime.spark.spark_session", shared)

    def run(settings: Settings, *arguments: str) -> str:
        file = tmp_path / "settings.yaml"
        file.write_text(settings.to_yaml())
        with pytest.raises(SystemExit) as ended:
            main(["--config", str(file), *arguments])
        out, err = capsys.readouterr()
        assert ended.value.code == 0, out + err
        assert "Traceback" not in err
        return out

    return run
