"""Logs of nodes become sightings, each once, and nothing that a stranger makes a node log can hide or invent one."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.config import PathSettings
from reliable_channel.core.errors import EnvironmentFault, LocalError
from reliable_channel.evidence import log_files
from reliable_channel.evidence.log_files import LogCounts, read_logs
from reliable_channel.evidence.node_logs import EVENTS, REPEATS, LogSighting, Unread, parse_line
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table, rows_of
from reliable_channel.lake.tables import SIGHTINGS
from reliable_channel.lake.tables.evidence import BRIDGE_SOURCES
from tests.support.node_log_lines import FORMATS, SHARD, nim_json, nim_text, zap_console

AT_MS = 1_767_225_600_123
NOW_US = 1_780_000_000_000_000
HASH = bytes(range(32))
Format = Callable[[int, str, bytes, str, str], str]


def parse(line: str | bytes) -> Any:
    return parse_line(line.encode() if isinstance(line, str) else line, NOW_US)


@pytest.fixture
def paths(tmp_path: Path) -> PathSettings:
    return PathSettings(run_dir=str(tmp_path / "run"))


def sightings(paths: PathSettings) -> list[tuple[str, str, str, int]]:
    """Vantage, source, peer and ms of the sightings in the table, in order."""
    rows = rows_of(open_table(paths, SIGHTINGS))
    return sorted((r["vantage"], r["source"], r["node"] or "", round(r["seen_at"].timestamp() * 1000)) for r in rows)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", ["received", "relayed", "stored"])
def test_every_format_shows_what_the_node_did_and_when(form: Format, kind: str) -> None:
    (sighting,) = parse(form(AT_MS, kind, HASH, "16U*own111", "16U*peer22"))
    names_peers = form.__name__.startswith("nim")
    assert sighting == LogSighting(
        HASH,
        "published" if kind == "relayed" and not names_peers else kind,
        "16U*peer22" if names_peers and kind != "stored" else None,
        AT_MS * 1000,
        SHARD,
        "16U*own111" if names_peers else None,
    )


def test_no_kind_of_a_log_is_one_of_a_bridge() -> None:
    """The verdicts count the sightings of bridges only."""
    assert not {kind for kind, _ in EVENTS.values()} & {*BRIDGE_SOURCES}
    assert all(text == text.lower() for text in (*EVENTS, *REPEATS)) and not REPEATS & EVENTS.keys()


@pytest.mark.parametrize("form", FORMATS)
def test_lines_of_containers_are_unwrapped(form: Format) -> None:
    line = form(AT_MS, "stored", HASH, "16U*own111", "")
    wrapped = [f"2026-01-01T00:00:01.5Z stdout F {line}", json.dumps({"log": line + "\n", "stream": "stdout"})]
    wrapped += [json.dumps({"message": line, "host": "a"})]
    assert parse(json.dumps({"log": wrapped[1]})) is None
    for each in wrapped:
        (sighting,) = parse(each)
        assert (sighting.message_hash, sighting.kind, sighting.seen_at_us) == (HASH, "stored", AT_MS * 1000)


@pytest.mark.parametrize(
    "peers", [r'"@[\"16U*9fieFq\", \"16U*yHyirb\"]"', r'"[16U*9fieFq, 16U*yHyirb]"', '"16U*9fieFq 16U*yHyirb"']
)
def test_a_push_to_several_peers_is_a_sighting_for_each(peers: str) -> None:
    line = "NTC 2026-01-01 00:00:00.123+00:00 pushed message succesfully to all subscribers"
    pushed = parse(f"{line} topics=x target_peer_ids={peers} msg_hash=0x{HASH.hex()}")
    assert [(each.kind, each.peer) for each in pushed] == [("pushed", "16U*9fieFq"), ("pushed", "16U*yHyirb")]


def test_a_strangers_text_neither_hides_nor_invents_a_sighting() -> None:
    other = "0x" + "ee" * 32
    texts = (
        f"/a msg_hash={other} Received relay message",
        f'/a" msg_hash={other}',
        "/a\x1b[2J\x07\x00/b",
        "/\u202e\ufffd",
        '{"msg":"message archived"}',
        "/" + "a=" * 2000,
    )
    for text in texts:
        quoted = '"' + text.replace('"', '\\"') + '"'
        line = (
            f"TRC 2026-01-01 00:00:00.123+00:00 Received relay message   contentTopic={quoted} msg_hash=0x{HASH.hex()}"
        )
        assert [(each.message_hash, each.kind) for each in parse(line)] == [(HASH, "received")], text
        fields = {"contentTopic": text, "hash": f"0x{HASH.hex()}"}
        line = "\t".join(["2026-01-01T00:00:00.123Z", "INFO", "w", "f:1", "waku.relay received", json.dumps(fields)])
        assert [(each.message_hash, each.kind) for each in parse(line)] == [(HASH, "received")], text
    invented = json.dumps({"ts": AT_MS / 1000, "msg": "message archived", "hash": f"0x{HASH.hex()}"})
    for before in ("INFO: a new topic ", "2026-01-01T00:00:00Z\tINFO\ta {b} ", "TRC == "):
        assert parse(before + invented) is None
    torn = b'{"ts":"2026-01-01 00:00:00+00:00","msg":"message archived","contentTopic":"\xff\xfe\x01","hash":"0x%s"}'
    assert [each.kind for each in parse(torn % HASH.hex().encode())] == ["stored"]


@pytest.mark.parametrize("at_ms", [0, 1_500_000_000_000, NOW_US // 1000 + 2 * 86_400_000, 10**15])
def test_an_impossible_time_is_no_sighting(at_ms: int) -> None:
    fields = {"ts": at_ms / 1000, "msg": "message archived", "hash": f"0x{HASH.hex()}"}
    assert parse(json.dumps(fields)) == Unread(None)


def test_a_line_without_a_year_has_that_of_its_message_else_the_newest_that_is_not_in_the_future() -> None:
    line = f"DEBUG[02-29|01:40:04.123|f.go:1] received new envelope   envelopeHash=0x{HASH.hex()}"
    (sighting,) = parse(f"{line} timestamp=1709170800000000000")
    assert time.gmtime(sighting.seen_at_us / 1e6)[:3] == (2024, 2, 29)
    assert parse(line) == Unread(None)  # of no year near to 2026
    (sighting,) = parse(line.replace("02-29", "12-31"))
    assert time.gmtime(sighting.seen_at_us / 1e6)[:3] == (2025, 12, 31)


@given(st.one_of(st.binary(max_size=400), st.text(alphabet='{}"\\=\t |[]:0x1aTRC\x1b', max_size=200).map(str.encode)))
def test_nothing_in_a_line_raises(noise: bytes) -> None:
    line = nim_text(AT_MS, "received", HASH, "a", "b").encode()
    for each in (noise, noise + line, line + noise, line[:40] + noise + line[40:]):
        parse_line(each, NOW_US)


def log_of(count: int, form: Format = nim_text, begin: int = 0) -> str:
    lines = [form(AT_MS + n, "received", n.to_bytes(32), "16U*own111", "16U*peer22") for n in range(begin, count)]
    return "".join(f"{line}\n" for line in lines)


def test_a_log_that_was_rotated_compressed_and_continued_adds_only_what_is_new(
    paths: PathSettings, tmp_path: Path
) -> None:
    log = tmp_path / "node.log"
    log.write_text(log_of(30))
    assert read_logs(paths, [log]).new == 30
    assert read_logs(paths, [log]).new == 0
    log.write_text(log_of(40) + nim_text(AT_MS + 40, "received", (40).to_bytes(32), "16U*own111", "x")[:-5])
    counts = read_logs(paths, [log])
    assert (counts.sightings, counts.new) == (40, 10)
    packed = [tmp_path / "node.log.1.gz", tmp_path / "node.log.2.zst"]
    packed[0].write_bytes(gzip.compress(log_of(25).encode()) + gzip.compress(log_of(41, begin=25).encode()))
    packed[1].write_bytes(zstandard.compress(log_of(41, nim_json).encode()))
    assert read_logs(paths, packed).new == 1
    assert [at - AT_MS for *_, at in sightings(paths)] == [*range(41)]


def test_only_sightings_of_the_same_messages_are_compared(
    paths: PathSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sightings that are far apart have all that the node did between them."""
    log = tmp_path / "node.log"
    log.write_text(log_of(30))
    read_logs(paths, [log])
    compared: list[int] = []
    select_key = log_files._select_key

    def count(rows: pa.Table) -> pa.Table:
        compared.append(rows.num_rows)
        return select_key(rows)

    monkeypatch.setattr(log_files, "_select_key", count)
    log.write_text(log_of(1) + log_of(31, begin=29))
    assert read_logs(paths, [log]).new == 1
    assert compared == [3, 2]


def test_parts_of_a_log_are_written_as_one(
    paths: PathSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "ROWS_AT_ONCE", 7)
    (tmp_path / "node.log").write_text(log_of(30) * 2)
    counts = read_logs(paths, [tmp_path / "node.log"])
    assert (counts.lines, counts.sightings, counts.new, len(sightings(paths))) == (60, 60, 30, 30)


def test_the_node_has_the_name_given_or_that_of_its_log(paths: PathSettings, tmp_path: Path) -> None:
    log = tmp_path / "node.log"
    log.write_text(zap_console(AT_MS, "received", HASH, "", "") + "\n")
    with pytest.raises(LocalError, match="does not name its node"):
        read_logs(paths, [log])
    assert read_logs(paths, [log], "amber").new == 1
    log.write_text(log.read_text() + nim_text(AT_MS + 1, "received", HASH, "16U*own111", "16U*peer22") + "\n")
    read_logs(paths, [log])
    assert sightings(paths) == [
        ("16U*own111", "received", "", AT_MS),
        ("16U*own111", "received", "16U*peer22", AT_MS + 1),
        ("amber", "received", "", AT_MS),
    ]


def test_a_line_before_and_after_the_first_that_names_the_node_is_one_sighting(
    paths: PathSettings, tmp_path: Path
) -> None:
    unnamed = zap_console(AT_MS, "received", HASH, "", "") + "\n"
    naming = nim_text(AT_MS + 1, "received", HASH, "16U*own111", "16U*peer22") + "\n"
    (tmp_path / "node.log").write_text(unnamed + naming + unnamed)
    assert read_logs(paths, [tmp_path / "node.log"]).new == len(sightings(paths)) == 2


def test_long_lines_are_skipped_and_unknown_ones_counted(paths: PathSettings, tmp_path: Path) -> None:
    line = nim_text(AT_MS, "received", HASH, "16U*own111", "16U*peer22")
    long = line + " x=" + "y" * log_files.MAX_LINE_BYTES * 40
    (tmp_path / "node.log").write_text("\n".join([long, line, line.replace("Received", "Lost"), long, ""]))
    counts = read_logs(paths, [tmp_path / "node.log"])
    assert counts == LogCounts(4, 1, 1, 2, 0, counts.unknown)
    assert counts.unknown == {"Lost relay message": 1}


def test_a_torn_file_is_a_fault_and_what_was_before_is_kept(
    paths: PathSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(log_files, "ROWS_AT_ONCE", 100)
    whole = gzip.compress(log_of(3000).encode())
    (tmp_path / "torn").write_bytes(whole[: len(whole) * 9 // 10])
    with pytest.raises(EnvironmentFault, match="torn cannot be read"):
        read_logs(paths, [tmp_path / "torn"])
    kept = len(sightings(paths))
    assert 0 < kept < 3000
    (tmp_path / "whole").write_bytes(whole)
    assert read_logs(paths, [tmp_path / "whole"]).new == 3000 - kept


def test_standard_input_is_read_as_a_file(paths: PathSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "in").write_text(log_of(5))
    with (tmp_path / "in").open() as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert read_logs(paths, [Path("-")]).new == 5


def test_two_that_read_the_same_log_at_once_write_each_sighting_once(
    paths: PathSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_files, "ROWS_AT_ONCE", 50)
    (tmp_path / "node.log").write_text(log_of(200))
    create_tables(paths, (SIGHTINGS,))
    with ThreadPoolExecutor(2) as pool:
        counts = [*pool.map(lambda _: read_logs(paths, [tmp_path / "node.log"]), range(2))]
    assert sum(each.new for each in counts) == len(sightings(paths)) == 200


def test_a_file_that_is_not_there_is_named(paths: PathSettings, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"nothing\.log cannot be read: No such file or directory"):
        read_logs(paths, [tmp_path / "nothing.log"])
