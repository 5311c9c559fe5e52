"""The benchmarks' frame: no figure that was found is lost, and the exit code says what happened."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import bench.codecs  # registers its own before a test replaces them
from bench.__main__ import main
from bench.jobs.channels import START_US
from bench.jobs.children import child
from bench.jobs.compare import best_of, ratios, steady
from bench.jobs.held import as_text, filling, key_of, latencies, row, size_of
from bench.jobs.stages import Stage
from bench.jobs.traffic import records, workloads
from bench.low_rate import figures
from bench.page import BEGIN, END, renew
from bench.questions import narrow
from bench.registry import REGISTERED, Result
from reliable_channel.config import load
from reliable_channel.pipeline.ack.channel_state import Channels, LiveChannels, Rules
from reliable_channel.pipeline.ack.records import row_of
from tests.support.benches import QUICK, check_small
from tests.unit.pipeline.buckets import FakeBucket


def good() -> Iterator[Result]:
    yield Result("speed", 2.0, "MB/s", 1.0)


def bad() -> Iterator[Result]:
    yield Result("half", 1.0, "s", 2.0)
    raise RuntimeError("the rest broke")


def stopped() -> Iterator[Result]:
    yield Result("first", 1.0, "s")
    raise KeyboardInterrupt


def run(monkeypatch: pytest.MonkeyPatch, place: Path, benches: list[object], *arguments: str) -> tuple[int, list[str]]:
    monkeypatch.setitem(REGISTERED, bench.codecs.__name__.rpartition(".")[2], benches)  # type: ignore[arg-type]
    code = main(["--only", "codecs", "--output", str(place), *arguments])
    return code, [row["name"] for row in json.loads((place / "codecs.json").read_text(encoding="utf-8"))]


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_bench_runs_at_a_small_scale(name: str, tmp_path: Path) -> None:
    check_small(name, tmp_path)


def test_a_bench_that_breaks_keeps_what_it_had_found_and_harms_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, tmp_path, [bad, good]) == (1, ["half", "speed"])
    assert "the rest broke" in capsys.readouterr().out


def test_the_page_shows_what_is_missed_and_the_closest_of_what_is_met(tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.write_text(f"before\n{BEGIN}\n{END}\nafter\n", encoding="utf-8")
    renew(
        page, {"zeros": [Result("errors", 0.0, "", 0.0, True, "nothing")], "codecs": [Result("old", 1.0, "ratio", 2.0)]}
    )
    few = [Result(f"met {n}", float(n), "ratio", 10.0, True, "a copy") for n in (3, 9, 5)]
    renew(page, {"codecs": [*few, Result("missed", 0.1, "MB", 0.5, against="a copy"), Result("no target", 1.0, "s")]})
    text = page.read_text(encoding="utf-8")
    lines = [[cell.strip() for cell in line.split("|")[1:7]] for line in text.splitlines() if line.startswith("| ")]
    assert lines[1:] == [
        ["codecs", "missed", "0.1 MB", "≥ 0.5", "**no**", "a copy"],
        ["codecs", "met 9 (and 2 more)", "9", "≤ 10", "yes", "a copy"],
        ["zeros", "errors", "0", "≤ 0", "yes", "nothing"],
    ]
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_what_is_stopped_keeps_what_it_had_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert run(monkeypatch, tmp_path, [stopped, good]) == (130, ["first"])


def test_a_missed_target_is_a_fault_only_when_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def missed() -> Iterator[Result]:
        yield Result("speed", 0.5, "MB/s", 1.0)

    assert run(monkeypatch, tmp_path, [missed])[0] == 0
    assert run(monkeypatch, tmp_path, [missed], "--strict")[0] == 3
    assert run(monkeypatch, tmp_path, [good], "--strict")[0] == 0


def test_every_workload_has_the_records_of_its_messages() -> None:
    counts = {each.name: sum(1 for _ in records(replace(each, messages=4))) for each in workloads(0.001)}
    segments = (counts.pop("large") + 2) / 4
    assert segments > 800_000 / 102_400 and segments.is_integer(), "of every other message one is lost"
    assert counts == {"small": 4, "filters": 4, "pairs": 8, "hot": 4}


def test_a_measured_process_gives_its_lines_and_ends() -> None:
    with child("platform", {}) as process:
        assert list(process.answers()) == [], "what is no JSON object is no answer"
        process.close_input()
        process.finish(60)


def test_a_measured_process_that_fails_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"json\.tool ended with"), child("json.tool", {"no": "file"}) as process:
        process.finish(60)


def stage(name: str, seconds: float, cpu_s: float, cores: int = 2, repetition: int = 0) -> Stage:
    return Stage("pairs", cores, name, repetition, 1_000, 500_000, seconds, cpu_s, 100.0, cpu_s)


def test_ratios_are_of_the_best_repetition_and_of_what_was_measured() -> None:
    stages = [
        stage("floor", 3.0, 2.0),
        stage("floor", 2.0, 3.0, repetition=1),
        stage("ingest", 4.0, 4.0),
        stage("reassembly", 2.0, 2.0),
        stage("ack", 2.0, 2.0),
    ]
    found = {result.name: result for result in ratios(best_of(stages))}
    assert found["pairs, 2 cores: ingest / floor"].value == 0.5
    assert found["pairs, 2 cores: ingest / floor, CPU"].value == 0.5
    assert found["pairs, 2 cores: all three / floor"].met is False, "its target on two cores is 0.3"
    assert found["pairs, 2 cores: all three / floor, CPU"].target == 0.25
    assert found["CPU time that others took from the same cores"].value == pytest.approx(11 / 21)
    only_floor = [result.name for result in ratios(best_of(stages[:2]))]
    assert only_floor == ["CPU time that others took from the same cores"], "a run that broke off still counts"


def test_a_run_whose_batches_grow_is_not_flat() -> None:
    batches = [
        {"rows": 10, "ms": 100 * number, "wait_ms": 0, "state_rows": 50, "state_bytes": 1} for number in range(1, 31)
    ]
    few = [{**batch, "state_rows": number // 15} for number, batch in enumerate(batches)]
    growing = [{**batch, "state_rows": 10 * number} for number, batch in enumerate(batches)]
    queries = {"ack": batches, "reassembly": few, "other": growing}
    answer = {"latency_s": [1.0, 2.0], "peak_mb": 1, "cpu_s": 1, "others_s": 0, "batches": queries}
    found = {result.name: result.met for result in steady(answer, 10, 10)}
    assert found["steady, ack: batch time, second half / first"] is False
    assert found["steady, ack: state rows, second half / first"] is True
    assert found["steady, other: state rows, second half / first"] is False
    assert found["steady, reassembly: state rows"] is True, "one row more is no growth"
    assert found["steady: latency p95 / a round"] is True


def test_a_round_is_the_time_between_two_micro_batches_of_ingest() -> None:
    batches = {"ingest": [{"add_batch_ms": 500}, {"add_batch_ms": 1_500}], "ack": [{"add_batch_ms": 700}]}
    latency = [1.0, 2.0, 4.0]
    answer = {"batches": batches, "latency_s": latency, "cpu_s": 3.0, "others_s": 0.0, "idle_cpu_s": 6.0}
    found = {result.name: result for result in figures(answer, seconds=4.0, idle_s=30.0)}
    a_round = found["100 records/s: a round / the trigger interval"]
    assert (a_round.value, a_round.met) == (2.0, False)
    assert found["100 records/s, ingest: add_batch_ms"].value == 1_000
    idle = found["idle: CPU / at 100 records/s"]
    assert (idle.value, idle.met) == (pytest.approx(0.2 / 0.75), False)


def test_the_held_channels_have_the_state_of_one_that_took_the_rows() -> None:
    settings = load("local")
    rules = Rules(None, settings.sds, None)
    texts = [as_text(row(number, 0, number, START_US // 1000 + number)) for number in range(20)]
    bucket = FakeBucket()
    given: list[object] = []

    def update(key: object, frames: Iterator[object], state: object) -> Iterator[object]:
        given.append(key)
        yield from frames

    fill = filling(update, rules, {7: [3, 5]}, texts)  # type: ignore[arg-type]
    for _ in range(2):  # the second time the bucket has a head
        assert list(fill((7,), iter(["rows"]), bucket)) == ["rows"]  # type: ignore[list-item]
    taken = rules.observer(key_of(5), None)
    for text in texts:
        taken.take(row_of(json.loads(text), None))
    held = Channels(bucket, 7, lambda _: rules, live=LiveChannels())
    assert held.load(key_of(5)).observer.to_bytes() == taken.to_bytes()
    assert given == [(7,), (7,)]


def test_files_that_a_job_deletes_while_they_are_counted_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("gone", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name, encoding="utf-8")
    scandir = os.scandir

    def deleting(place: Any) -> Any:
        if str(place).endswith("gone"):
            (tmp_path / "gone" / "file").unlink()
            (tmp_path / "gone").rmdir()
        return scandir(place)

    monkeypatch.setattr(os, "scandir", deleting)
    assert size_of(tmp_path) == len("kept")


def test_the_latency_of_rows_ends_with_the_micro_batch_that_took_the_last_of_them() -> None:
    sent, done = [(10, 1.0), (20, 2.0), (30, 3.0)], [(0, 0.0), (10, 2.5), (30, 6.0)]
    assert latencies(sent, done, since=0.0) == [1.5, 4.0, 3.0]
    assert latencies(sent, done, since=2.0) == [4.0, 3.0]


def test_a_question_about_one_topic_asks_each_of_its_tables_for_that_topic_only() -> None:
    topic = "(SELECT * FROM {} WHERE content_topic = 'c' AND event_time > 1)"
    sql = "FROM {} a JOIN {} USING (sds_id) JOIN pipeline_metrics m"
    asked = sql.format(topic.format("acks"), topic.format("deliveries") + " deliveries")
    assert narrow(sql.format("acks", "deliveries"), "content_topic = 'c' AND {0} > 1") == asked
    assert narrow(asked, "") == asked
