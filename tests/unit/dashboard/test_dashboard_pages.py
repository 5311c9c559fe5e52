"""Every page over real tables: escaped, bounded, exact, and cheap when nothing changed. No browser here."""

from __future__ import annotations

import datetime as dt
import html
import re
import shlex
import shutil
from pathlib import Path
from urllib.parse import urlencode

import pandas as pd
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from starlette.testclient import TestClient

from reliable_channel.analysis import text as texts
from reliable_channel.analysis.dashboard import figures, page_cache, render
from reliable_channel.analysis.dashboard.page_cache import PageCache
from reliable_channel.analysis.dashboard.quarantine import MEANINGS
from reliable_channel.analysis.dashboard.windows import TimeWindow
from reliable_channel.analysis.report import delivery
from reliable_channel.analysis.report.charts import loss as loss_charts
from reliable_channel.analysis.report.dark import DARK
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import PathSettings
from reliable_channel.core.wire.malformed import Reason
from reliable_channel.lake.commit import delete_rows
from reliable_channel.lake.read import rows_of
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import BY_NAME
from tests.support.dashboard_client import FILES, HtmlPage, hostile_key, key_of, over
from tests.support.sample_values import HOSTILE, digest

EVERY_PAGE = (
    "/?last=all",
    "/channels?last=all",
    "/channels?last=all&order=name&page=2",
    FILES + "&last=all",
    "/messages?last=all",
    "/messages?last=all&verdict=missing&cause=segment_missing",
    "/quarantine?last=all",
    "/quarantine?last=all&reason=malformed_sds",
    "/alerts",
    *("/messages?" + urlencode({"q": text}) for text in (HOSTILE[0], HOSTILE[3], HOSTILE[7])),
    "/channels?" + urlencode({"text": HOSTILE[3], "last": "all"}),
    "/quarantine?" + urlencode({"reason": HOSTILE[0], "last": "all"}),
    *("/channel?" + urlencode({**hostile_key(number), "last": "all"}) for number in range(len(HOSTILE))),
    *("/message?" + urlencode({**hostile_key(n), "key": f"{HOSTILE[n]} {n}"}) for n in (0, 1, 3, 4)),
    "/channel?" + urlencode(key_of(HOSTILE[0], HOSTILE[1])),
)


@pytest.mark.parametrize("address", EVERY_PAGE, ids=lambda address: address[:60])
def test_every_page_is_well_formed_and_safe_whatever_the_names_are(client: TestClient, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code in (200, 404), answer.text
    page = HtmlPage(answer.text)
    assert len(page.ids) == len(set(page.ids)), "ids are unique"
    assert set(page.references) <= set(page.ids), "labels refer to what is there"
    assert page.headings[0] == "h1" and page.headings.count("h1") == 1
    assert page.tables == page.captions
    assert all(target.startswith(("/", "#")) and not target.startswith("//") for target in page.addresses)
    without_inputs = re.sub(r"<(input|option) [^>]+>", "", answer.text)  # they give back what was typed or chosen
    steering = [c for c in without_inputs if not c.isprintable() and c != "\n"]
    assert steering == [], "nothing that could turn the direction of writing or move a cursor"


def test_hostile_names_are_shown_and_their_channels_and_messages_open(client: TestClient) -> None:
    for number, text in enumerate(HOSTILE):
        page = client.get("/channel?" + urlencode({**hostile_key(number), "last": "all"}))
        assert page.status_code == 200, text[:40]
        messages = re.findall(r'href="(/message\?[^"]+)"', page.text)
        assert messages
        if number in (3, 8):
            assert client.get(messages[0].replace("&amp;", "&")).status_code == 200
    listed = client.get("/channels?last=all").text
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in listed
    assert "<script>alert" not in listed


def test_pictures_survive_hostile_names(client: TestClient) -> None:
    query = urlencode({**hostile_key(3), "key": f"{HOSTILE[3]} 3"})
    addresses = ["/charts/verdicts.svg?last=all", "/charts/rate.svg?last=all", "/charts/lag.svg?theme=dark"]
    addresses += [f"/charts/message/timeline.svg?{query}", f"/charts/message/graph.svg?{query}&width=narrow"]
    for address in addresses:
        answer = client.get(address)
        assert answer.status_code == 200, address
        assert answer.headers["content-type"] == "image/svg+xml"
        assert "<script" not in answer.text and "sandbox" in answer.headers["content-security-policy"]


def test_a_channel_that_is_called_like_a_colour_keeps_its_name() -> None:
    spec = {"datasets": {"d": [{"channel_id": "white"}]}, "mark": {"stroke": "white"}}
    assert figures._prepare(spec, DARK) == {**spec, "mark": {"stroke": DARK["white"]}}


def test_the_overview_counts_what_the_story_tells(client: TestClient, sample_tables: Path) -> None:
    status = rows_of(DeltaTable(str(sample_tables / "delivery_status")))
    settled = [row for row in status if row["verdict"] != "unknown"]
    delivered = [row for row in settled if row["verdict"] == "delivered"]
    text = client.get("/?last=all").text
    assert f"{len(delivered)} of {len(settled)} settled" in text
    for cause in {row["cause"] for row in status if row["cause"]}:
        count = sum(row["cause"] == cause for row in status)
        assert re.search(rf">{cause.replace('_', ' ')}</td>\s*<td class=\"number\"><a [^>]+>{count}</a>", text), cause


def test_a_channel_names_the_causes_of_what_was_not_delivered(client: TestClient, sample_tables: Path) -> None:
    status = rows_of(DeltaTable(str(sample_tables / "delivery_status")))
    causes = [row["cause"] for row in status if row["channel_id"] == "files" and row["verdict"] == "missing"]
    shown = client.get(FILES + "&last=all").text.split('class="causes"')[1].split("</ul>")[0]
    for cause in set(causes):
        words = re.escape((cause or "no cause known").replace("_", " "))
        assert re.search(rf"{words}</span> <strong>{causes.count(cause)}</strong>", shown), cause


def test_a_channel_without_verdicts_counts_what_was_delivered(sample_tables: Path, tmp_path: Path) -> None:
    """The list of channels had it; the page said that 0 of 0 were delivered, and none was missing."""
    place = tmp_path / "tables"
    shutil.copytree(sample_tables, place)
    delete_rows(DeltaTable(str(place / "delivery_status")), "channel_id = 'files'")
    delivered = [one for one in rows_of(DeltaTable(str(place / "delivered_messages"))) if one["channel_id"] == "files"]
    tiles = over(place).get(FILES + "&last=all").text.split('class="tiles"')[1].split("</dl>")[0]
    assert f"<dt>Delivered</dt><dd>{len(delivered)}<small>without a verdict yet" in tiles
    assert "<dt>Missing</dt>" not in tiles


def test_the_matrix_says_who_acknowledged_whom(client: TestClient, sample_tables: Path) -> None:
    acks = rows_of(DeltaTable(str(sample_tables / "acks")))
    deliveries = rows_of(DeltaTable(str(sample_tables / "deliveries")))
    sent = {d["sds_id"] for d in deliveries if d["channel_id"] == "talk" and d["sender_id"] == "alice"}
    mine = [a for a in acks if a["channel_id"] == "talk" and a["sds_id"] in sent and a["acknowledged_by"] == "bob"]
    certain = {a["sds_id"] for a in mine if a["certainty"] == "certain"}
    probable = {a["sds_id"] for a in mine} - certain
    text = client.get("/channel?" + urlencode({**key_of("talk"), "last": "all"})).text
    header = re.findall(r'<th scope="col" class="number"><bdi>(\w+)</bdi>', text.split('id="matrix-table"')[1])
    row = text.split('<th scope="row"><bdi>alice</bdi></th>')[1].split("</tr>")[0]
    cell = re.findall(r"<td class=\"number (?:heat|self)[^>]*>(.*?)</td>", row)[header.index("bob")]
    extra = f'<span class="probable">+{len(probable)}</span>' if probable else ""
    assert cell == f"{len(certain)}{extra}"
    assert certain


def test_a_channel_says_who_is_behind_and_since_when(client: TestClient) -> None:
    text = client.get("/channel?" + urlencode({**key_of("talk"), "last": "all"})).text
    behind = text.split('id="behind"')[1].split("</section>")[0]
    assert "<bdi>carol</bdi> lacks 4 messages since 2026-11-01 12:30:00." in behind
    assert behind.count(" lacks ") == 1
    assert behind.split('id="behind-table"')[1].index("carol") < behind.split('id="behind-table"')[1].index("alice")


def test_a_channel_says_what_the_envelopes_of_a_sender_were_for(client: TestClient, sample_tables: Path) -> None:
    messages = rows_of(DeltaTable(str(sample_tables / "sds_messages")))
    of_alice = [row for row in messages if row["channel_id"] == "files" and row["sender_id"] == "alice"]
    envelopes = {row["envelope_hash"]: row for row in of_alice}.values()
    parity = {row["sds_id"] for row in envelopes if row["segment_kind"] == "parity"}
    table = client.get(FILES + "&last=all").text.split('id="budget-table"')[1].split("</table>")[0]
    row = table.split("<bdi>alice</bdi>")[1].split("</tr>")[0]
    numbers = re.findall(r'<td class="number">([\d.]*)</td>', row)
    assert (int(numbers[0]), int(numbers[2])) == (len(envelopes), len(parity))
    assert sum(map(int, numbers[1:6])) == len(envelopes)


def test_a_message_is_found_by_sds_id_hash_and_how_they_begin(client: TestClient, sample_tables: Path) -> None:
    segments = rows_of(DeltaTable(str(sample_tables / "sds_messages")))
    one = next(s for s in segments if s["channel_id"] == "files" and s["segment_kind"] == "data")
    wanted = [one["sds_id"], one["sds_id"][:10], one["envelope_hash"].hex(), "0x" + one["entire_message_hash"].hex()]
    for name in wanted:
        text = client.get("/messages?" + urlencode({"q": name})).text
        assert urlencode({"channel_id": "files"}) in text.split('id="found-table"')[1], name
    nothing = client.get("/messages?" + urlencode({"q": digest("nobody").hex()}))
    assert "No message has this id or hash" in nothing.text


def test_a_message_is_found_by_its_id_as_pages_shorten_it(client: TestClient, sample_tables: Path) -> None:
    segments = rows_of(DeltaTable(str(sample_tables / "sds_messages")))
    one = next(s for s in segments if s["channel_id"] == "files" and s["segment_kind"] == "data")
    for name in (texts.name(one["sds_id"], 20), one["sds_id"][:12] + "…"):
        assert "…" in name
        text = client.get("/messages?" + urlencode({"q": name})).text
        assert urlencode({"channel_id": "files"}) in text.split('id="found-table"')[1], name
    wrong = one["sds_id"][:12] + "…" + "zzzz"
    assert "found-table" not in client.get("/messages?" + urlencode({"q": wrong})).text


def test_a_name_that_is_almost_right_is_met_with_those_that_there_are(client: TestClient) -> None:
    assert '<a href="/messages?q=carol">' in client.get("/messages?q=Carrol").text
    assert "Did you mean" not in client.get("/messages?q=" + "0" * 40).text
    assert "Did you mean" not in client.get("/messages?q=x" + "\U0001f600" * 58).text, "comparing long names takes long"


def test_the_missing_messages_are_filtered_by_cause_and_channel_and_turned_over(
    client: TestClient, sample_tables: Path
) -> None:
    status = [s for s in rows_of(DeltaTable(str(sample_tables / "delivery_status"))) if s["verdict"] == "missing"]
    assert len({s["cause"] for s in status}) > 1 and len({s["channel_id"] for s in status}) > 1

    def listed(**chosen: str) -> int:
        return client.get("/messages?" + urlencode({"verdict": "missing", "last": "all", **chosen})).text.count(
            'class="chip chip-missing"'
        )

    one = next(s for s in status if s["cause"] and s["channel_id"] == "files")
    assert listed() == len(status) <= 50
    for names in ({"cause"}, {"channel"}, {"cause", "channel"}):
        chosen = {"cause": one["cause"], "channel": one["channel_id"]}
        same = [s for s in status if all(s[{"channel": "channel_id"}.get(n, n)] == chosen[n] for n in names)]
        assert listed(**{name: chosen[name] for name in names}) == len(same)
    text = client.get("/messages?verdict=missing&last=all&channel=files").text
    assert '<option value="files" selected>files</option>' in text
    assert f'<option value="{one["cause"]}">' in text


def test_marks_of_pictures_say_what_they_are_and_lead_on(client: TestClient, sample_tables: Path) -> None:
    verdicts = client.get("/charts/verdicts.svg?last=all").text
    assert re.search(r'<a href="/messages\?last=all&amp;verdict=missing&amp;cause=segment_missing">', verdicts)
    assert re.search(r"<title>missing: segment missing: \d+ messages?, [\d: -]+</title>", verdicts)
    assert '<a href="/channels?last=all&amp;text=files">' in client.get("/charts/rate.svg?last=all").text
    status = rows_of(DeltaTable(str(sample_tables / "delivery_status")))
    one = next(s for s in status if s["cause"] == "segment_missing")
    key = {name: one[name] for name in ("pubsub_topic", "content_topic", "channel_id")}
    graph = client.get("/charts/message/graph.svg?" + urlencode({**key, "key": one["message_key"]})).text
    nodes = re.findall(r'<a href="(/message\?[^"]+)">', graph)
    assert nodes
    for node in nodes:
        assert client.get(node.replace("&amp;", "&")).status_code == 200
    assert "dashboard.invalid" not in verdicts + graph


def test_axes_of_time_run_to_the_recorded_clock_of_a_live_pipeline() -> None:
    clock = dt.datetime(2026, 11, 23, 9, 30, tzinfo=dt.UTC)
    assert TimeWindow("all", clock, clock, clock, clock + dt.timedelta(seconds=3)).now == clock
    assert TimeWindow("all", clock, clock, clock, clock + dt.timedelta(days=1)).now is None
    first = pd.Timestamp("2026-11-23 08:00", tz="UTC")
    bins = pd.DataFrame([{"time": first, "verdict": "delivered", "outcome": "delivered", "messages": 1, "link": "x"}])
    drawn = loss_charts.verdicts(bins, 60, clock).to_dict()
    end = drawn["encoding"]["x"]["scale"]["domainMax"]
    assert end == clock.timestamp() * 1000


def test_a_picture_of_many_channels_makes_only_the_rows_of_its_table(
    sample_tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = dt.datetime(2026, 11, 23, 9, 30, tzinfo=dt.UTC)
    bins = [{"time": clock, "name": f"channel {number}", "messages": 1} for number in range(5_000)]
    made: list[str | None] = []
    monkeypatch.setattr(delivery, "rate", lambda _: pd.DataFrame(bins))
    monkeypatch.setattr(texts, "name", lambda name: made.append(name) or name)
    lake = TableSnapshot(PathSettings(data_dir=str(sample_tables)))
    shown = figures.rate(lake, TimeWindow("all", clock, clock, clock, clock))
    assert len(made) == len(shown.rows) == figures.MOST_ROWS and shown.more == 5_000 - figures.MOST_ROWS


@pytest.mark.parametrize("name", ["quiet", "carol"])
def test_the_messages_of_a_channel_or_sender_are_found(client: TestClient, sample_tables: Path, name: str) -> None:
    status = rows_of(DeltaTable(str(sample_tables / "delivery_status")))
    mine = [s for s in status if name in (s["channel_id"], s["sender_id"])]
    assert mine
    text = client.get("/messages?" + urlencode({"q": name})).text.split('id="found-table"')[1]
    assert text.count("<tr>") - 1 == min(len(mine), 50)


def test_the_overview_says_what_the_figures_come_to_and_when_data_came(client: TestClient, sample_tables: Path) -> None:
    text = client.get("/?last=all").text
    status = [s["verdict"] for s in rows_of(DeltaTable(str(sample_tables / "delivery_status")))]
    missing, settled = status.count("missing"), status.count("missing") + status.count("delivered")
    said = re.findall(r'id="conclusion"[^>]*><bdi>([^<]*)<', text)[0]
    assert said.startswith(f"{100 * missing / settled:.1f} % of {settled} settled messages are missing.")
    newest = max(row["recorded_at"] for row in rows_of(DeltaTable(str(sample_tables / "clock"))))
    assert f'data-newest="{newest.isoformat()}"' in text
    stages = re.findall(r'<th scope="row">([^<]+)</th>', text.split('id="latency-table"')[1].split("</table>")[0])
    assert stages == ["on the network", "waiting", "acknowledgement"]
    assert 'data-job="ack"' in text and 'data-job="ingest"' not in text


def test_every_number_of_the_causes_leads_to_so_many_messages(client: TestClient) -> None:
    table = client.get("/?last=all").text.split('id="causes-table"')[1].split("</table>")[0]
    numbers = re.findall(r'<a href="([^"]+)">([\d,]+)</a>', table)
    assert len(numbers) > 8
    for address, number in numbers:
        count, page, more = 0, 1, True
        while more:
            listed = client.get(f"{html.unescape(address)}&page={page}").text
            count, page, more = count + listed.count('<tr><td><a href="/message'), page + 1, 'rel="next"' in listed
        assert count == int(number.replace(",", "")), address


def test_quarantine_has_hex_and_a_command_only_for_reasons_that_exist(client: TestClient) -> None:
    text = client.get("/quarantine?last=all&reason=malformed_sds").text
    assert 'data-copy="reliable-channel requeue --reason malformed_sds"' in text
    assert re.search(r"<pre class=\"dump\">0000  ([0-9a-f]{2} )+", text)
    assert "data-copy" not in client.get("/quarantine?last=all&reason=x;rm+-rf").text
    assert {reason.value for reason in Reason} == set(MEANINGS)


@pytest.mark.parametrize(
    "address",
    [
        "/?last=2h",
        "/channels?order=channel_id;drop",
        "/channels?page=0",
        "/channels?page=10001",
        "/channels?page=x",
        "/messages?verdict=lost",
        "/charts/lag.svg?theme=sepia",
        "/quarantine?reason=" + "x" * 65,
        "/messages?q=" + "x" * 8_001,
    ],
)
def test_a_wrong_address_is_a_page_with_a_sentence(client: TestClient, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 400
    assert "The address says something else" in answer.text
    HtmlPage(answer.text)


@pytest.mark.parametrize(
    "address",
    [
        "/nowhere",
        "/static/../app.py",
        "/static/app.py",
        "/charts/none.svg",
        "/charts/message/none.svg",
        "/charts/message/graph.svg?key=nobody",
        "/message",
        "/message?key=nobody",
        "/channel",
        "/channel?channel_id=nobody",
        "/docs",
        "/openapi.json",
    ],
)
def test_what_is_not_there_is_404(client: TestClient, address: str) -> None:
    answer = client.get(address)
    assert answer.status_code == 404
    HtmlPage(answer.text)


def test_an_unchanged_page_is_neither_asked_for_nor_made_again(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = client.get(FILES + "&last=7d")
    queries: list[str] = []
    monkeypatch.setattr(
        "reliable_channel.analysis.report.snapshot.TableSnapshot.arrow", lambda self, sql, *_: queries.append(sql)
    )
    again = client.get(FILES + "&last=7d", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(FILES + "&last=7d").content == first.content
    weak = client.get(FILES + "&last=7d", headers={"If-None-Match": "W/" + first.headers["etag"]})
    assert weak.status_code == 304
    assert queries == []


def test_alerts_beyond_the_bound_of_the_page_are_counted(tmp_path: Path) -> None:
    row = {"alert": "silent_channel", "kind": "silent_channel", "state": "raised", "severity": "warning", "detail": "d"}
    rows = [{**row, "sequence": n, "subject": f"{n}", "recorded_at": dt.datetime.now(dt.UTC)} for n in range(1, 204)]
    write_deltalake(str(tmp_path / "alerts"), pa.Table.from_pylist(rows, schema=arrow_schema(BY_NAME["alerts"])))
    pages = over(tmp_path)
    assert "3 more are raised." in pages.get("/alerts").text
    assert "<dt>Alerts</dt><dd>203<small>raised now</small>" in pages.get("/").text


def test_the_command_to_copy_checks_the_tables_of_the_page(sample_tables: Path, tmp_path: Path) -> None:
    place = tmp_path / "two words"
    shutil.copytree(sample_tables / "alerts", place / "alerts")
    (command,) = re.findall(r'data-copy="([^"]*)"', over(place).get("/alerts").text)
    assert shlex.split(html.unescape(command)) == ["reliable-channel", "alerts", "check", "--tables", str(place)]


def test_a_table_that_grows_gives_another_page(sample_tables: Path, tmp_path: Path) -> None:
    place = tmp_path / "tables"
    shutil.copytree(sample_tables, place)
    client = over(place)
    first = client.get("/alerts")
    row = {
        "sequence": 1, "alert": "loss_rate", "kind": "loss_rate", "subject": '["/p", "/c", "<b>talk</b>"]',
        "state": "raised", "severity": "critical", "value": 0.5, "threshold": 0.1, "detail": "5 of 10",
    }  # fmt: skip
    schema = arrow_schema(BY_NAME["alerts"])
    rows = [{name: row.get(name) for name in schema.names}]
    write_deltalake(str(place / "alerts"), pa.Table.from_pylist(rows, schema=schema), mode="append")
    second = client.get("/alerts", headers={"If-None-Match": first.headers["etag"]})
    assert second.status_code == 200
    assert "&lt;b&gt;talk&lt;/b&gt;" in second.text and "5 of 10" in second.text
    assert client.get("/alerts").headers["etag"] == second.headers["etag"]


def test_many_requests_share_one_look_at_the_tables(sample_tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    looked: list[str] = []
    opened = page_cache.TableSnapshot  # type: ignore[attr-defined]
    monkeypatch.setattr(page_cache, "TableSnapshot", lambda paths: looked.append("look") or opened(paths))
    cache = PageCache(PathSettings(data_dir=str(sample_tables)), fresh_s=1, monotonic=lambda: now[0])
    lakes = [cache.lake() for _ in range(5)]
    assert len({id(lake) for lake in lakes}) == 1
    now[0] = 1.0
    assert cache.lake() is not lakes[0]
    assert len(looked) == 3, "at the start, at the first request, and after a second"


def test_the_pages_that_are_kept_have_few_bytes_in_all(tmp_path: Path) -> None:
    """A client chooses the addresses, and so which 128 pages those are."""
    cache, rendered = PageCache(PathSettings(data_dir=str(tmp_path))), list[int]()

    def render(number: int) -> None:
        size = page_cache.MOST_KEPT_BYTES // 4
        cache.get_or_render(f"{number}", lambda: (rendered.append(number) or bytes(size), 200))  # type: ignore[func-returns-value]

    for number in (0, 1, 2, 3, 0, 4, 0, 1):
        render(number)
    assert rendered == [0, 1, 2, 3, 4, 1], "the one requested last but one made room"


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [(0, 0, "–"), (1, 3, "33.3 %"), (1, 10_000, "0.01 %"), (9_999, 10_000, "> 99.9 %"), (5, 5, "100 %")],
)
def test_a_share_is_never_all_or_nothing_when_it_is_not(part: int, whole: int, expected: str) -> None:
    assert texts.share(part, whole) == expected


def test_values_stand_in_the_unit_that_suits_them() -> None:
    assert [texts.duration(ms) for ms in (None, 12, 1_500, 150_000, 8e6, 2e8)] == [
        "–", "12 ms", "1.5 s", "2.5 min", "2.22 h", "2.3 d",
    ]  # fmt: skip
    assert [texts.size(n) for n in (None, 0, 1023, 1536, 5 * 2**30)] == ["–", "0 B", "1023 B", "1.5 KiB", "5 GiB"]
    assert [texts.number(n) for n in (None, 1234.0, 12.34)] == ["–", "1,234", "12.3"]
    assert render.dump(b"AB\x00\x1b" + b"z" * 13).splitlines() == [
        "0000  41 42 00 1b 7a 7a 7a 7a 7a 7a 7a 7a 7a 7a 7a 7a  AB..zzzzzzzzzzzz",
        "0010  7a                                               z",
    ]
    assert texts.name("a" * 70) == "a" * 40 + "…" + "a" * 19
    assert render.prose("run `<b>` now") == "run <code>&lt;b&gt;</code> now"
