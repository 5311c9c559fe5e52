"""A second driver of a query is refused before it starts Spark or declares itself, where checkpoints are on a disk."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from reliable_channel.cli.app import build
from reliable_channel.config import PathSettings, load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.read import exists
from reliable_channel.lake.tables import PIPELINE_METRICS
from reliable_channel.pipeline.runner import job as job_module
from reliable_channel.pipeline.runner.job import main as job
from reliable_channel.pipeline.runner.one_driver import hold_checkpoints
from reliable_channel.pipeline.runner.queries import ACK, CHAIN, REASSEMBLY, Query
from reliable_channel.runtime import own_broker, spark
from tests.support.error_page import exit_code, pattern_of

IN_USE = pattern_of("A checkpoint that is in use")
"""What docs/errors.md says."""


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PathSettings:
    """Those of jobs and commands, which start no Spark."""

    def fail(*_: object) -> NoReturn:
        raise AssertionError("Spark was started")

    for module in (job_module, spark):
        monkeypatch.setattr(module, "spark_session", fail)
    monkeypatch.setattr(own_broker, "check_kafka", lambda *_, **__: None)
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    return load("local").paths


@pytest.mark.parametrize("mode", ["--once", "--continuous"])
@pytest.mark.parametrize("query", [REASSEMBLY, ACK], ids=lambda query: query.name)
def test_a_job_that_runs_already_is_refused(
    paths: PathSettings, query: Query, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two that live, the one that ends in order would hide that the other one dies."""
    with hold_checkpoints(paths, [query.name]):
        assert job(query, [mode]) == exit_code("A checkpoint that is in use")
        assert IN_USE.fullmatch(capsys.readouterr().err.strip())
    assert not exists(paths, PIPELINE_METRICS)
    with hold_checkpoints(paths, [query.name]):
        pass


@pytest.mark.parametrize("arguments", [["run"], ["run", "--continuous"], ["rebuild"]], ids=" ".join)
@pytest.mark.parametrize("query", CHAIN, ids=lambda query: query.name)
def test_what_runs_all_jobs_is_refused_beside_any(paths: PathSettings, query: Query, arguments: list[str]) -> None:
    with hold_checkpoints(paths, [query.name]):
        result = CliRunner().invoke(build(), arguments)
    assert isinstance(result.exception, EnvironmentFault)
    assert IN_USE.fullmatch(f"reliable-channel: {result.exception}")
    with hold_checkpoints(paths, [each.name for each in CHAIN]):  # it keeps none of the others
        pass


def test_jobs_of_one_chain_run_side_by_side(paths: PathSettings) -> None:
    with hold_checkpoints(paths, ["reassembly"]), hold_checkpoints(paths, ["ack"]):
        pass


def test_without_locks_nothing_is_refused(paths: PathSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    there = load("local", paths={"checkpoint_dir": "s3a://bucket/checkpoints"}).paths
    with hold_checkpoints(there, ["ack"]), hold_checkpoints(there, ["ack"]):
        pass

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with hold_checkpoints(paths, ["ack"]), hold_checkpoints(paths, ["ack"]):
        pass
