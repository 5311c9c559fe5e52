"""A job that comes again and again and fails raises an alert, which its next good run clears."""

from __future__ import annotations

import datetime as dt
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import pytest

from reliable_channel.analysis.alerts.check import check
from reliable_channel.cli.commands.run import run_verdicts
from reliable_channel.config import PathSettings, Settings, load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.live import record_failing, record_outcome, write_metric
from reliable_channel.lake.tables import PIPELINE_METRICS, TABLES
from reliable_channel.pipeline.maintenance import maintain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    settings = load("local", paths={"run_dir": str(tmp_path)})
    create_tables(settings.paths, TABLES)
    return settings


def failing(settings: Settings) -> list[str]:
    """The jobs about which the alert is raised."""
    return [alert.subject for alert in check(settings).open_alerts if alert.alert == "failing_job"]


def fail(*_: Any, **__: Any) -> NoReturn:
    raise EnvironmentFault("The disk is full.")


def test_a_job_that_fails_raises_an_alert_until_it_ends_well(settings: Settings) -> None:
    with pytest.raises(EnvironmentFault), record_outcome(settings.paths, "evidence"):
        fail()
    assert failing(settings) == ["evidence"]
    with record_outcome(settings.paths, "refetch"):
        pass
    assert failing(settings) == ["evidence"]
    with record_outcome(settings.paths, "evidence"):
        pass
    assert failing(settings) == []


def test_a_job_that_failed_days_ago_still_does_whatever_others_wrote_since(settings: Settings) -> None:
    now = dt.datetime.now(dt.UTC)
    write_metric(settings.paths, "maintain", "run", 0, "failing", 1.0, now - dt.timedelta(days=6))
    write_metric(settings.paths, "ingest", "run", 0, "input_rows", 1.0, now)
    assert failing(settings) == ["maintain"]


def test_where_no_pipeline_ran_no_table_is_made(tmp_path: Path) -> None:
    paths = PathSettings(run_dir=str(tmp_path), data_dir=str(tmp_path / "tables"))
    record_failing(paths, "maintain", True)
    assert not (tmp_path / "tables").exists()


def test_an_outcome_that_cannot_be_recorded_keeps_no_job_from_its_work(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("reliable_channel.lake.live.append_rows", fail)
    with record_outcome(settings.paths, "maintain"):
        pass
    assert "How maintain ended was not recorded: The disk is full." in caplog.text


def test_maintenance_that_fails_is_noticed_and_a_dry_run_is_none(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(maintain, "_maintain_table", fail)
        with pytest.raises(EnvironmentFault):
            maintain.run(settings, dry_run=True)
        assert failing(settings) == []
        with pytest.raises(EnvironmentFault):
            maintain.run(settings)
    assert failing(settings) == ["maintain"]
    maintain.run(settings, only=[PIPELINE_METRICS.name])
    assert failing(settings) == ["maintain"]
    maintain.run(settings)
    assert failing(settings) == []


@pytest.mark.parametrize("by", ["jobs/verdict.py", "run --once --verdicts"])
def test_verdicts_that_fail_still_check_the_alerts(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr("reliable_channel.pipeline.verdict.verdicts.run", fail)
    monkeypatch.setattr("reliable_channel.evidence.collecting.collect_evidence", lambda _: ())
    with pytest.raises(EnvironmentFault):
        if by == "jobs/verdict.py":
            runpy.run_path(by)["judge"](None, settings)
        else:
            run_verdicts(cast("SparkSession", None), settings, lambda _: None)
    assert [alert.subject for alert in check(settings).changed] == [], "the job has raised it itself"
    assert failing(settings) == ["verdict"]


@pytest.mark.parametrize(
    ("job", "works"),
    [("evidence", "evidence.collecting.collect_evidence"), ("refetch", "evidence.refetch.refetch_once")],
)
def test_a_job_without_spark_that_fails_is_noticed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, job: str, works: str
) -> None:
    monkeypatch.setattr(f"reliable_channel.{works}", fail)
    monkeypatch.setattr("reliable_channel.runtime.own_broker.check_kafka", lambda _: None)
    monkeypatch.setattr("sys.argv", [f"{job}.py"])
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(f"jobs/{job}.py", run_name="__main__")
    assert ended.value.code == 1
    assert failing(settings) == [job]
