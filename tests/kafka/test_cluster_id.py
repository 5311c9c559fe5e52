"""The cluster id that tells our own broker from another one, asked of a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from reliable_channel.cli import main
from reliable_channel.config import Settings
from reliable_channel.pipeline.runner.job import main as job
from reliable_channel.pipeline.runner.queries import INGEST
from reliable_channel.runtime.own_broker import cluster_id_of
from tests.support.error_page import exit_code, pattern_of

pytestmark = pytest.mark.kafka


def test_a_broker_tells_its_cluster_id(broker: Settings) -> None:
    found = cluster_id_of(broker.kafka)
    assert found is not None
    assert len(found) == 22, "the form that StorageTool writes into meta.properties"


@pytest.fixture
def elsewhere(broker: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another run directory, whose default port the broker of the tests has."""
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RELIABLE_CHANNEL__KAFKA__BROKER__PORT", broker.kafka.servers.rpartition(":")[2])
    return tmp_path


@pytest.mark.parametrize("command", [["kafka", "topics"], ["run", "--once"], ["simulate"]])
def test_commands_leave_a_kafka_of_somebody_else_alone(
    command: list[str],
    broker: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RELIABLE_CHANNEL__KAFKA__BROKER__PORT", broker.kafka.servers.rpartition(":")[2])
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == exit_code("Another Kafka on the port")
    assert pattern_of("Another Kafka on the port").fullmatch(capsys.readouterr().err.strip())


def test_a_job_leaves_a_kafka_of_somebody_else_alone(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert job(INGEST, []) == 1
    assert "is not the broker of the run directory" in capsys.readouterr().err
    assert not list(elsewhere.iterdir()), "nothing was begun"
