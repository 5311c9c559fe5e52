"""Whole runs over real tables: every change stands in the table once, and the webhook hears of it at least once."""

from __future__ import annotations

import json
import logging
import runpy
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from reliable_channel.analysis.alerts import check as checking
from reliable_channel.analysis.alerts.check import CheckResult, check
from reliable_channel.analysis.alerts.log import AlertLog
from reliable_channel.analysis.alerts.rules import parse_rules
from reliable_channel.analysis.alerts.webhook import Webhook
from reliable_channel.cli import main
from reliable_channel.config import Settings, load
from reliable_channel.core.errors import EnvironmentFault
from reliable_channel.lake.create import create_table
from reliable_channel.lake.read import dataset_of
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import ALERTS, BY_NAME
from tests.support.alert_rows import bridge_row, clock, minutes
from tests.support.hostile_server import OK, answering, drip
from tests.support.sample_values import HOSTILE

RULES = parse_rules("rules: [{alert: split, kind: topic_in_partitions}]", "test")
SECRET = "s3cret-path-and-token"


class Receiver(ThreadingHTTPServer):
    """A real webhook: answers with the next status of ``answers``, then with 204; keeps what it accepted."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: list[int] = []
        self.accepted: list[dict[str, Any]] = []
        self.tries = 0
        self.headers: dict[str, str] = {}


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.tries += 1
        self.server.headers = dict(self.headers)
        status = self.server.answers.pop(0) if self.server.answers else 204
        if status == 204:
            self.server.accepted += json.loads(body)["alerts"]
        self.send_response(status)
        if status == 302:
            self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load("local", paths={"run_dir": str(tmp_path)})


@pytest.fixture
def with_webhook(settings: Settings, receiver: Receiver) -> Settings:
    """The settings with the webhook."""
    url = f"http://127.0.0.1:{receiver.server_port}/{SECRET}"
    return load(
        "local", paths={"run_dir": settings.paths.run_dir}, alerts={"webhook_url": url, "webhook_token": SECRET}
    )


def put(settings: Settings, name: str, *rows: dict[str, Any]) -> None:
    schema = arrow_schema(BY_NAME[name])
    complete = [{column: row.get(column) for column in schema.names} for row in rows]
    write_deltalake(settings.paths.table(name), pa.Table.from_pylist(complete, schema=schema), mode="append")


def split(settings: Settings, *topics: str) -> None:
    """Every topic is seen in two partitions, one minute before the recorded clock."""
    put(settings, "clock", clock(minutes(0)))
    both = [bridge_row(0, minutes(-1), partition, content_topic=topic) for topic in topics for partition in (0, 1)]
    put(settings, "sds_messages", *both)


def later(settings: Settings) -> None:
    """The recorded clock goes on by two hours: what was in the window is not any more."""
    put(settings, "clock", clock(minutes(120)))


def run(settings: Settings, **more: Any) -> CheckResult:
    return check(settings, rules=RULES, webhook=Webhook(settings.alerts, sleep=lambda _: None), **more)


def rows(settings: Settings) -> list[dict[str, Any]]:
    table = dataset_of(DeltaTable(settings.paths.table(ALERTS.name))).to_table().sort_by("sequence")
    found: list[dict[str, Any]] = table.to_pylist()
    return found


def test_a_change_is_written_once_and_cleared_once(settings: Settings) -> None:
    split(settings, "/a", "/b")
    assert [change.subject for change in run(settings).changed] == ["/a", "/b"]
    assert run(settings).changed == ()
    later(settings)
    assert len(run(settings).changed) == 2
    outcome = run(settings)
    assert (outcome.changed, outcome.open_alerts) == ((), ())
    assert [(row["sequence"], row["subject"], row["state"]) for row in rows(settings)] == [
        (1, "/a", "raised"),
        (2, "/b", "raised"),
        (3, "/a", "cleared"),
        (4, "/b", "cleared"),
    ]
    assert rows(settings)[0]["as_of"] == minutes(0)


def test_an_alert_that_is_still_raised_is_shown_as_it_is_now(settings: Settings) -> None:
    split(settings, "/a")
    assert [alert.detail for alert in run(settings).open_alerts] == ["in 2 partitions"]
    put(settings, "sds_messages", bridge_row(0, minutes(-1), 2, content_topic="/a"))
    outcome = run(settings)
    assert [(alert.value, alert.detail) for alert in outcome.open_alerts] == [(3, "in 3 partitions")]
    assert outcome.changed == () and rows(settings)[0]["detail"] == "in 2 partitions"


def test_a_table_with_comments_of_another_version_is_appended_to(with_webhook: Settings, receiver: Receiver) -> None:
    earlier = replace(ALERTS, columns=tuple(replace(column, meaning="before") for column in ALERTS.columns))
    create_table(with_webhook.paths.table(ALERTS.name), earlier)
    split(with_webhook, "/a")
    run(with_webhook)
    assert [row["subject"] for row in rows(with_webhook)] == ["/a"]
    assert len(receiver.accepted) == 1


def test_of_two_runs_at_once_one_begins_anew_and_nothing_stands_twice(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    split(settings, "/a")

    class ConflictingLog(AlertLog):
        """Another run writes between our look at the table and our append."""

        conflicted = False

        def append(self, *arguments: Any) -> bool:
            if not ConflictingLog.conflicted:
                ConflictingLog.conflicted = True
                assert AlertLog(settings.paths).append(*arguments)
            return super().append(*arguments)

    monkeypatch.setattr(checking, "AlertLog", ConflictingLog)
    assert run(settings).changed == (), "the other run was first"
    assert [row["subject"] for row in rows(settings)] == ["/a"]


def test_numbers_go_on_when_retention_has_removed_the_rows(settings: Settings) -> None:
    split(settings, "/a")
    run(settings)
    DeltaTable(settings.paths.table(ALERTS.name)).delete()
    run(settings)
    assert [(row["sequence"], row["state"]) for row in rows(settings)] == [(2, "raised")], "open still: raised again"


def test_the_webhook_is_tried_again_within_a_run(with_webhook: Settings, receiver: Receiver) -> None:
    split(with_webhook, "/a")
    receiver.answers = [500, 429, 503]
    assert run(with_webhook).sent == 1
    assert receiver.tries == 4
    (alert,) = receiver.accepted
    assert (alert["id"], alert["alert"], alert["subject"], alert["state"]) == (1, "split", "/a", "raised")
    assert alert["as_of"] == minutes(0).isoformat()
    assert receiver.headers["Authorization"] == f"Bearer {SECRET}"
    assert run(with_webhook).sent == 0, "it knows"


def test_what_was_not_taken_is_told_by_the_next_run_in_order(with_webhook: Settings, receiver: Receiver) -> None:
    split(with_webhook, "/a")
    run(with_webhook)
    later(with_webhook)
    receiver.answers = [500] * 4
    outcome = run(with_webhook)
    assert outcome.sent == 0
    assert outcome.fault is not None and "500" in str(outcome.fault)
    put(with_webhook, "clock", clock(minutes(130)))
    put(with_webhook, "sds_messages", *(bridge_row(9, minutes(129), partition) for partition in (0, 1)))
    assert run(with_webhook).sent == 2
    assert [(a["id"], a["state"]) for a in receiver.accepted] == [(1, "raised"), (2, "cleared"), (3, "raised")]


def test_a_new_webhook_hears_what_is_open_and_no_history(
    settings: Settings, with_webhook: Settings, receiver: Receiver
) -> None:
    split(settings, "/a")
    run(settings)
    later(settings)
    run(settings)
    put(settings, "clock", clock(minutes(130)))
    put(settings, "sds_messages", *(bridge_row(9, minutes(129), partition, content_topic="/b") for partition in (0, 1)))
    run(with_webhook)
    assert [(a["id"], a["subject"]) for a in receiver.accepted] == [(3, "/b")]
    run(with_webhook)
    assert len(receiver.accepted) == 1


def test_more_than_one_page_is_told_page_by_page(with_webhook: Settings, receiver: Receiver) -> None:
    many = load("local", paths={"run_dir": with_webhook.paths.run_dir}, alerts={"most_open": 250})
    split(many, *(f"/t{n:03}" for n in range(250)))
    run(many)
    receiver.answers = [204, 500, 500, 500, 500]
    assert run(with_webhook).sent == 100
    assert run(with_webhook).sent == 150
    assert [a["id"] for a in receiver.accepted] == [*range(1, 251)]


@pytest.mark.parametrize("status", [401, 302, 404])
def test_a_refusal_is_not_repeated_at_once_and_no_redirect_is_followed(
    with_webhook: Settings, receiver: Receiver, status: int
) -> None:
    split(with_webhook, "/a")
    receiver.answers = [status]
    outcome = run(with_webhook)
    assert receiver.tries == 1
    assert str(status) in str(outcome.fault)
    assert run(with_webhook).sent == 1


@pytest.mark.parametrize("answers", [[401], [500] * 4, None])
def test_the_url_and_the_token_reach_no_error_output_or_table(
    with_webhook: Settings,
    receiver: Receiver,
    answers: list[int] | None,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    split(with_webhook, "/a")
    if answers is None:
        receiver.server_close()
    else:
        receiver.answers = answers
    outcome = run(with_webhook)
    assert outcome.fault is not None
    seen = [
        str(outcome.fault),
        repr(outcome),
        with_webhook.to_yaml(),
        repr(with_webhook),
        json.dumps(rows(with_webhook), default=str),
    ]
    # httpx logs the address of a request at INFO, which nobody sees unless it is asked for; ours must not.
    seen += [record.getMessage() for record in caplog.records if record.name.startswith("reliable_channel")]
    assert not any(SECRET in text for text in seen)


def test_hostile_names_reach_the_webhook_as_json_strings_only(with_webhook: Settings, receiver: Receiver) -> None:
    split(with_webhook, *HOSTILE)
    run(with_webhook)
    assert {a["subject"] for a in receiver.accepted} == set(HOSTILE)
    assert not any(text in a["detail"] for a in receiver.accepted for text in HOSTILE)
    assert not any(text in value for value in receiver.headers.values() for text in HOSTILE)


def test_a_url_that_is_none_is_said_without_it(settings: Settings) -> None:
    alerts = load("local", alerts={"webhook_url": "http://[::secret"}).alerts
    with pytest.raises(EnvironmentFault) as refused:
        Webhook(alerts).send([{"sequence": 1}])
    assert "secret" not in str(refused.value)


def test_a_receiver_on_loopback_is_not_behind_the_proxy(
    with_webhook: Settings, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    Webhook(with_webhook.alerts).send([{"sequence": 1}])
    assert [alert["id"] for alert in receiver.accepted] == [1]


def test_a_receiver_that_never_answers_is_given_up(with_webhook: Settings, receiver: Receiver) -> None:
    def silent(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("no answer", request=request)

    hook = replace(Webhook(with_webhook.alerts, sleep=lambda _: None), transport=httpx.MockTransport(silent))
    with pytest.raises(EnvironmentFault, match="ReadTimeout"):
        hook.send([{"sequence": 1}])


@pytest.mark.parametrize(("asked", "tries"), [("7", 4), ("0", 4), ("soon", 4), ("60", 1), ("86400", 1)])
def test_a_pause_that_the_receiver_asks_for_is_kept_or_left_to_the_next_run(
    with_webhook: Settings, asked: str, tries: int
) -> None:
    pauses: list[float] = []
    calls: list[httpx.Request] = []

    def busy(request: httpx.Request) -> httpx.Response:
        calls.append(request)
        return httpx.Response(429, headers={"Retry-After": asked})

    hook = Webhook(with_webhook.alerts, sleep=pauses.append, transport=httpx.MockTransport(busy))
    with pytest.raises(EnvironmentFault, match="it answered 429"):
        hook.send([{"sequence": 1}])
    assert (len(calls), len(pauses)) == (tries, tries - 1)
    assert all(pause >= (7 if asked == "7" else 0.5) for pause in pauses)


def test_a_receiver_whose_headers_drip_is_given_up() -> None:
    with answering(drip(OK, b"X")) as url:
        alerts = load("local", alerts={"webhook_url": url, "webhook_timeout_ms": 300, "webhook_attempts": 1}).alerts
        with pytest.raises(EnvironmentFault, match="ReadTimeout"):
            Webhook(alerts).send([{"sequence": 1}])


Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def cli(settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__RUN_DIR", settings.paths.run_dir)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([*arguments])
        out, err = capsys.readouterr()
        return int(str(ended.value.code)), out, err

    return call


def test_the_command_shows_escapes_and_fails_when_asked_to(settings: Settings, cli: Cli) -> None:
    code, _, err = cli("alerts", "check")
    assert code == 1 and "There are no Delta tables under" in err, "a wrong place is not a quiet one"
    put(settings, "clock")
    assert cli("alerts", "check") == (0, "0 alerts are raised (no recorded clock yet)\n", "")
    split(settings, "/a", "\x1b[2J\x1b]0;owned\x07")
    code, out, _ = cli("alerts", "check")
    assert code == 0
    assert "\\x1b[2J" in out and "\x1b" not in out
    assert cli("alerts", "check", "--fail")[0] == 3
    values = json.loads(cli("alerts", "check", "--json")[1])
    assert [alert["subject"] for alert in values["raised"]] == ["\x1b[2J\x1b]0;owned\x07", "/a"]
    assert values["changed"] == []


def test_a_channel_is_named_as_people_name_it(settings: Settings, cli: Cli) -> None:
    put(settings, "clock", clock(minutes(0)))
    put(settings, "sds_messages", *(bridge_row(n, minutes(-30), channel_id="talk\x1b[2J") for n in range(20)))
    said = cli("alerts", "check")[1].splitlines()
    assert said[0].startswith("1 alert is raised")
    assert said[1].startswith("  warning  silent_channel  channel talk\\x1b[2J of /")


def test_the_job_does_the_same_without_spark(
    settings: Settings, cli: Cli, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    job = runpy.run_path(str(Path(__file__).parents[3] / "jobs" / "alerts.py"))
    split(settings, "/a")
    assert job["main"]([]) == 0
    assert capsys.readouterr().out.startswith("1 alert is raised")
    monkeypatch.setenv("RELIABLE_CHANNEL__ALERTS__RULES", "/nowhere/rules.yaml")
    assert job["main"]([]) == 2
    assert capsys.readouterr().err.startswith("alerts: The rules file")


def test_a_wrong_rules_file_is_one_sentence_and_exit_code_2(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIABLE_CHANNEL__ALERTS__RULES", "/nowhere/rules.yaml")
    code, _, err = cli("alerts", "rules")
    assert (code, err.count("\n")) == (2, 1)
    assert "/nowhere/rules.yaml does not exist" in err
