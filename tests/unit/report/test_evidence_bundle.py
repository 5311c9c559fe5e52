"""Bundles of evidence: they agree with the truth of the simulation, and what is altered in them is found."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import CommitProperties, write_deltalake

from reliable_channel.analysis.bundle import archive
from reliable_channel.analysis.bundle.archive import ABOUT, SUMS, read_bundle
from reliable_channel.analysis.bundle.collect import _read_rows, collect
from reliable_channel.analysis.bundle.verify import MAX_COPIES, BundleSnapshot, CheckOutcome, EvidenceCheck, verify
from reliable_channel.analysis.dashboard.sections import section
from reliable_channel.analysis.report import investigate
from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.cli import main
from reliable_channel.config import ChannelsSettings, PathSettings, Settings
from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.core.errors import LocalError
from reliable_channel.core.segmentation import SegmentationConfig, contents_for
from reliable_channel.core.wire.bloom import list_absent
from reliable_channel.core.wire.sds import SdsMessage, encode_sds_message
from reliable_channel.core.wire.segment import Dialect
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message
from reliable_channel.lake import tables
from reliable_channel.lake.create import create_tables
from reliable_channel.lake.read import open_table
from reliable_channel.lake.schema import as_arrow
from reliable_channel.pipeline.verdict import verdicts
from reliable_channel.pipeline.verdict.gaps import NO_SILENCE
from reliable_channel.pipeline.verdict.position import USER_METADATA, make_position
from reliable_channel.simulation.participant import RepeatableAesGcm, channel_key
from reliable_channel.simulation.scenario import PERFECT, ChannelPlan, Fault, LinkQuality, Scenario, SizeMix
from reliable_channel.simulation.truth import TrueMessage
from reliable_channel.simulation.world import World, simulate
from tests.support.doc_blocks import ROOT, blocks_of
from tests.support.judged_tables import write_judged
from tests.support.simulated_tables import write

NO_KEYS = ChannelsSettings()
FAULTS = ((3, Fault.NEVER_SENT), (5, Fault.RATE_LIMITED), (7, Fault.SEGMENT_MISSING), (11, Fault.UNDECODABLE))
CAUSES = dict(FAULTS)


def make_world() -> World:
    field = ChannelPlan(
        channel_id="field",
        content_topic="/reliable-channel/1/field/proto",
        participants=("alice", "bob", "carol"),
        messages=14,
        duration_ms=140_000,
        segment_size=512,
        sizes=SizeMix(short=0.5, medium=0.0, large=0.5, max_segments=4),
        between=LinkQuality(loss=0.1),
        to_observer=PERFECT,
        repeats=0.0,
        faults=FAULTS,
    )
    sealed = replace(
        field,
        channel_id="sealed",
        content_topic="/reliable-channel/1/sealed/proto",
        messages=4,
        encrypted=True,
        faults=((1, Fault.UNDECRYPTABLE),),
    )
    inside = replace(
        sealed,
        channel_id="inside",
        content_topic="/reliable-channel/1/inside/proto",
        encryption_layer=EncryptionLayer.INSIDE_SDS,
    )
    alone = replace(
        field,
        channel_id="alone",
        content_topic="/reliable-channel/1/alone/proto",
        participants=("alice",),
        messages=2,
        faults=(),
    )
    return simulate(Scenario(seed=5, channels=(field, sealed, inside, alone), drain_ms=240_000))


@pytest.fixture(scope="module")
def world() -> World:
    return make_world()


@pytest.fixture(scope="module")
def settings(world: World, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return write_judged(tmp_path_factory.mktemp("judged"), world)


@pytest.fixture(scope="module")
def data(world: World, settings: Settings) -> bytes:
    """The bundle of a message of several segments that was delivered."""
    whole = next(m for m in of_channel(world, "field") if m.first_sds_id != m.last_sds_id and m.fault is None)
    return collect(settings, whole.first_sds_id)


def of_channels(world: World, *channels: str) -> World:
    """What happened in some channels."""
    keys = {f"/reliable-channel/1/{channel}/proto".encode() for channel in channels}
    records = [record for record in world.records if record.key in keys]
    return replace(world, records=records, journals=[j for j in world.journals if j.plan.channel_id in channels])


def of_channel(world: World, channel: str) -> list[TrueMessage]:
    return [message for message in world.truth.messages if message.channel_id == channel]


def check(data: bytes, channels: ChannelsSettings = NO_KEYS) -> list[EvidenceCheck]:
    return verify(read_bundle(data), channels)


def differing(checks: list[EvidenceCheck]) -> list[str]:
    return [str(each) for each in checks if each.outcome is CheckOutcome.DIFFERS]


def verdict_of(checks: list[EvidenceCheck]) -> EvidenceCheck:
    return next(each for each in checks if each.what.startswith("verdict"))


def change(data: bytes, edit: Callable[[dict[str, bytes]], object], sums: bool = True) -> bytes:
    """The bundle with other members, and with sums that fit them."""
    with zipfile.ZipFile(io.BytesIO(data)) as opened:
        members = {name: opened.read(name) for name in opened.namelist()}
    edit(members)
    if sums:
        lines = members[SUMS].decode().splitlines()
        names = [line.split("  ")[1] for line in lines]
        members[SUMS] = "".join(
            f"{hashlib.sha256(members[name]).hexdigest()}  {name}\n" for name in names if name in members
        ).encode()
    return archive._pack(members)


def edit_rows(name: str, edit: Callable[[dict[str, object]], object]) -> Callable[[dict[str, bytes]], None]:
    def edited(members: dict[str, bytes]) -> None:
        rows = [json.loads(line) for line in members[name].splitlines()]
        for row in rows:
            edit(row)
        members[name] = "".join(f"{json.dumps(row)}\n" for row in rows).encode()

    return edited


def test_the_bundle_of_every_message_holds_and_tells_the_truth(world: World, settings: Settings) -> None:
    derived_verdicts, wanted = {}, {}
    for message in of_channel(world, "field"):
        if message.number % 3 and message.number not in CAUSES:
            continue
        checks = check(collect(settings, message.first_sds_id))
        assert differing(checks) == []
        derived = verdict_of(checks)
        assert derived.outcome is CheckOutcome.OK
        derived_verdicts[message.number] = (
            derived.what.split(",")[0].removeprefix("verdict ").removesuffix(": derived again")
        )
        fault = CAUSES.get(message.number)
        wanted[message.number] = "delivered" if fault is None else f"missing ({fault.value})"
    assert derived_verdicts == wanted
    heard_by_nobody = check(collect(settings, of_channel(world, "alone")[0].first_sds_id))
    assert differing(heard_by_nobody) == []
    assert verdict_of(heard_by_nobody).what == "verdict delivered: derived again"


def test_the_same_tables_give_the_same_bytes_wherever_they_are(world: World, data: bytes, tmp_path: Path) -> None:
    settings = write_judged(tmp_path, make_world())
    wanted = read_bundle(data).about["message"]["message_key"]
    again = read_bundle(collect(settings, wanted))
    before = read_bundle(data)
    assert collect(settings, wanted) == collect(settings, wanted)
    assert {t.name: rows for t, rows in again.tables.items()} == {t.name: rows for t, rows in before.tables.items()}
    assert again.envelopes == before.envelopes


def test_a_bundle_needs_no_file_that_maintenance_has_replaced_since_the_last_round(
    world: World, data: bytes, settings: Settings, tmp_path: Path
) -> None:
    """A round that finds nothing new writes nothing, so the last one that did may be weeks old."""
    shutil.copytree(settings.paths.data_dir, tmp_path / "tables")
    here = settings.with_run_dir(tmp_path)
    create_tables(here.paths, verdicts.TABLES_READ)
    position = make_position(verdicts.open_evidence(here.paths), here, NO_SILENCE)
    properties = CommitProperties(custom_metadata={USER_METADATA: position.text()})
    status = open_table(here.paths, tables.DELIVERY_STATUS)
    write_deltalake(status, as_arrow([], tables.DELIVERY_STATUS), mode="append", commit_properties=properties)
    for table in (tables.SDS_MESSAGES, tables.DELIVERIES, tables.ENVELOPES):
        opened = open_table(here.paths, table)
        opened.optimize.z_order(["content_topic"])
        opened.vacuum(0, dry_run=False, enforce_retention_duration=False)
    again = collect(here, read_bundle(data).about["message"]["message_key"])
    assert read_bundle(again).envelopes == read_bundle(data).envelopes
    assert differing(check(again)) == []


def test_every_changed_byte_is_found(data: bytes) -> None:
    for at in range(0, len(data), max(1, len(data) // 200)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        with suppress(LocalError):
            assert read_bundle(bytes(flipped)).altered != [], at
    for cut in (data[:-1], data + b"\0", b"\0" + data, data[: len(data) // 2], b""):
        with suppress(LocalError):
            assert read_bundle(cut).altered != []


def test_swapped_members_are_found_with_and_without_their_sums(data: bytes) -> None:
    def swap(members: dict[str, bytes]) -> None:
        one, two, *_ = (name for name in members if name.startswith("envelopes/"))
        members[one], members[two] = members[two], members[one]

    assert len(read_bundle(change(data, swap, sums=False)).altered) == 2
    found = differing(check(change(data, swap)))
    assert any("message hash" in each for each in found), found


@pytest.mark.parametrize(
    ("table", "column", "value", "found"),
    [
        ("sds_messages", "sender_id", "mallory", "decoded again"),
        ("sds_messages", "lamport_timestamp", 1, "decoded again"),
        ("sds_messages", "envelope_hash", "00" * 32, "decoded again"),
        ("acks", "acknowledged_by", "mallory", "acknowledged_by"),
        ("delivery_status", "verdict", "missing", "verdict"),
        ("delivery_status", "acknowledged_by", ["mallory"], "acknowledged_by"),
        ("deliveries", "payload_bytes", 1, "another size"),
    ],
)
def test_a_row_that_does_not_follow_is_found(data: bytes, table: str, column: str, value: object, found: str) -> None:
    altered = change(data, edit_rows(f"tables/{table}.jsonl", lambda row: row.update({column: value})))
    assert any(found in each for each in differing(check(altered)))


def test_a_record_is_quarantined_for_its_reason_until_it_is_requeued(world: World, settings: Settings) -> None:
    data = collect(settings, of_channel(world, "field")[11].first_sds_id)
    name = "tables/quarantine.jsonl"
    assert [each.what for each in check(data) if "quarantined" in each.what] == ["2 quarantined records: reason"]
    other = check(change(data, edit_rows(name, lambda row: row.update(reason="meta_too_long"))))
    assert any("quarantined records" in each for each in differing(other))
    requeued = check(
        change(data, edit_rows(name, lambda row: row.update(disposition="requeued", reason="undecryptable")))
    )
    assert not any("quarantined records" in each for each in differing(requeued))


def test_an_acknowledgement_that_no_message_shows_is_found(data: bytes) -> None:
    def invent(members: dict[str, bytes]) -> None:
        rows = [json.loads(line) for line in members["tables/acks.jsonl"].splitlines()]
        own = [json.loads(line) for line in members["tables/sds_messages.jsonl"].splitlines()]
        first = min(own, key=lambda row: row["lamport_timestamp"])
        forged = {**rows[0], "evidence": "causal_history", "certainty": "certain", "evidence_sds_id": first["sds_id"],
                  "acknowledged_by": first["sender_id"]}  # fmt: skip
        members["tables/acks.jsonl"] += f"{json.dumps(forged)}\n".encode()

    assert any("acknowledgements" in each for each in differing(check(change(data, invent))))


def test_a_message_is_searched_once_for_all_that_it_acknowledges(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows name it: 49 000 that named one of 150 000 history entries took an hour."""

    def repeat(members: dict[str, bytes]) -> None:
        rows = [json.loads(line) for line in members["tables/acks.jsonl"].splitlines()]
        many = [{**row, "evidence": "filter"} for row in rows for _ in range(50)]
        members["tables/acks.jsonl"] = "".join(f"{json.dumps(row)}\n" for row in many).encode()

    searched: list[int] = []

    def count(field: bytes | None, ids: Sequence[str]) -> list[str] | None:
        searched.append(len(ids))
        return list_absent(field, ids)

    monkeypatch.setattr("reliable_channel.analysis.bundle.verify.list_absent", count)
    altered = read_bundle(change(data, repeat))
    assert altered.tables[tables.ACKS].num_rows >= 50
    check(change(data, repeat))
    acknowledging = {
        (row["evidence_sds_id"], row["acknowledged_by"]) for row in altered.tables[tables.ACKS].to_pylist()
    }
    assert 0 < len(searched) <= MAX_COPIES * len(acknowledging)


def test_what_was_left_out_shows_where_others_name_it(data: bytes) -> None:
    key = read_bundle(data).about["message"]["message_key"]

    def leave_out(members: dict[str, bytes]) -> None:
        rows = [json.loads(line) for line in members["tables/sds_messages.jsonl"].splitlines()]
        own = json.loads(members["tables/delivery_status.jsonl"])["sds_ids"]
        members["tables/sds_messages.jsonl"] = "".join(
            f"{json.dumps(row)}\n" for row in rows if row["sds_id"] != own[0]
        ).encode()

    checks = check(change(data, leave_out))
    assert any("are not here" in each.detail for each in checks if each.what == "that nothing was left out"), key
    assert differing(checks) != []


def test_the_message_before_a_namer_is_content_of_its_channel(tmp_path: Path) -> None:
    """During a gap a verdict depends on it, whatever the sender wrote meanwhile in other channels."""
    channel = {"pubsub_topic": "/waku/2/rs/1/0", "content_topic": "/app/1/x/proto", "channel_id": "field"}
    sent = [
        ("field", "before", "content", 1),
        ("elsewhere", "meanwhile", "content", 2),
        ("field", "a sync", "sync", 3),
        ("field", "namer", "content", 4),
        ("field", "after", "content", 5),
    ]
    at = {"kafka_topic": "t", "kafka_partition": 0, "event_time": 1, "ingest_time": 1, "sender_id": "alice"}
    messages = [
        {**channel, **at, "kafka_offset": time, "channel_id": name, "sds_id": sds_id, "sds_kind": kind,
         "lamport_timestamp": time, "family": "spec"}
        for name, sds_id, kind, time in sent
    ]  # fmt: skip
    lost = {**channel, **at, "kafka_offset": 9, "sds_id": "missing", "status": "lost", "needed_by": "namer"}
    write(tmp_path, tables.SDS_MESSAGES, messages)
    write(tmp_path, tables.LOST_DEPENDENCIES, [lost])
    paths = PathSettings(data_dir=str(tmp_path))
    status = {**channel, "sds_ids": ["missing"], "entire_message_hash": None, "message_key": "missing"}
    rows = _read_rows(paths, TableSnapshot(paths), status, in_gaps=True)
    assert {*rows[tables.SDS_MESSAGES]["sds_id"].to_pylist()} == {"before"}


@pytest.mark.parametrize("store_plaintext", [True, False])
def test_an_encrypted_message_needs_its_key(world: World, tmp_path: Path, store_plaintext: bool) -> None:
    settings = write_judged(tmp_path, of_channels(world, "sealed", "inside"), store_plaintext)
    for channel in ("sealed", "inside"):
        (delivered, refused) = of_channel(world, channel)[:2]
        data = collect(settings, delivered.first_sds_id)
        key = (tmp_path / f"{channel}.key").read_text()
        assert key.encode() not in data and bytes.fromhex(key) not in data
        without, given = check(data), check(data, settings.channels)
        assert differing(without) == differing(given) == []
        assert any("no key given opens them" in each.detail for each in without)
        rebuilt = [each for each in without if each.what.startswith("message: rebuilt")]
        assert bool(rebuilt) is store_plaintext, "the payload is in the bundle only if the tables hold it"
        assert any("rebuilt" in each.what and each.outcome is CheckOutcome.OK for each in given)
        assert "undecryptable" in verdict_of(check(collect(settings, refused.first_sds_id))).what
        (tmp_path / f"{channel}.key").write_text("00" * 32)
        assert differing(check(data, settings.channels)) == [], "another key opens nothing, which is no difference"


@pytest.mark.parametrize("store_plaintext", [True, False])
def test_an_ephemeral_message_in_a_segment_is_rebuilt_from_it(
    world: World, tmp_path: Path, store_plaintext: bool
) -> None:
    payload = b"typing"
    (content,) = contents_for(payload, SegmentationConfig(dialect=Dialect.LIP243))
    records = []
    last = world.records[-1]
    plans = world.scenario.channels[:3]
    ids = [str(number) * 64 for number, _ in enumerate(plans)]
    for sds_id, plan in zip(ids, plans, strict=True):
        made = encode_sds_message(SdsMessage("alice", sds_id, plan.channel_id, None, content=content))
        if plan.encryption_layer is EncryptionLayer.INSIDE_SDS:
            inside = RepeatableAesGcm(plan, (channel_key(plan),)).encrypt(content)
            made = encode_sds_message(SdsMessage("alice", sds_id, plan.channel_id, None, content=inside))
        elif plan.encrypted:
            made = RepeatableAesGcm(plan, (channel_key(plan),)).encrypt(made)
        value = encode_waku_message(WakuMessage(made, plan.content_topic, timestamp=last.at_ms * 10**6, ephemeral=True))
        records.append(replace(last, value=value))
    settings = write_judged(tmp_path, replace(world, records=records, journals=[]), store_plaintext)
    for sds_id in ids:
        checks = check(collect(settings, sds_id), settings.channels)
        assert differing(checks) == []
        assert any("Keccak-256, 6 bytes" in each.what and each.outcome is CheckOutcome.OK for each in checks)


def pack(**members: bytes) -> bytes:
    return archive._pack(members)


def compressed(data: bytes) -> bytes:
    written = io.BytesIO()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("bundle.json", b" " * 10_000_000)
    return written.getvalue()


def doubled(data: bytes) -> bytes:
    written = io.BytesIO(data)
    with zipfile.ZipFile(written, "a") as opened, pytest.warns(UserWarning, match="Duplicate"):
        opened.writestr(ABOUT, b"{}")
    return written.getvalue()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (compressed, "compressed"),
        (doubled, "two of one name"),
        (lambda data: change(data, lambda m: m.update({"../../etc/passwd.txt": b""})), "is named"),
        (lambda data: change(data, lambda m: m.update({"/tables/a.jsonl": b""})), "is named"),
        (lambda data: change(data, lambda m: m.update({"tables/acks.jsonl": b"{}\n" * 50_001})), "rows"),
        (lambda data: change(data, lambda m: m.update({"tables/acks.jsonl": b'{"sds_id": "\xff"}\n'})), "codec"),
        (lambda data: change(data, lambda m: m.update({"tables/acks.jsonl": b'{"sds_id": 1}\n'})), "no bundle"),
        (lambda data: change(data, lambda m: m.update({"tables/acks.jsonl": b"[" * 100_000})), "no bundle"),
        (lambda data: change(data, lambda m: m.update({"tables/acks.jsonl": b'{"odd": 1}\n'})), "odd"),
        (lambda data: change(data, lambda m: m.update({"tables/acks.jsonl": b" " * 9_000_000 + b"{}"})), "bytes"),
        (lambda data: data[:-10] + b"\xff" * 4 + data[-6:], "no directory"),
        (lambda data: change(data, lambda m: m.update({ABOUT: b"\xff"})), "no bundle"),
        (lambda data: change(data, lambda m: m.update({ABOUT: b'{"format": "other/1"}'})), "format"),
        (lambda data: change(data, lambda m: m.pop(ABOUT)), "no bundle"),
        (lambda data: b"PK\3\4" + bytes(1000), "no directory"),
    ],
)
def test_a_hostile_file_is_refused(data: bytes, make: Callable[[bytes], bytes], why: str) -> None:
    with pytest.raises(LocalError, match=re.escape(why)):
        read_bundle(make(data))


@pytest.mark.parametrize(
    ("table", "column", "several"),
    [("acks", "evidence", False), ("delivery_status", "acknowledged_by", True), ("delivery_status", "detail", False)],
)
def test_no_text_of_a_bundle_controls_a_terminal_or_forges_a_line(
    data: bytes, table: str, column: str, several: bool
) -> None:
    hostile = "\x1b]0;owned\x07\u202e\nok                 everything"
    edit = edit_rows(f"tables/{table}.jsonl", lambda row: row.update({column: [hostile] if several else hostile}))
    lines = [str(each) for each in check(change(data, edit))]
    assert any(r"\x1b]0;owned" in line for line in lines)
    assert all(line.isprintable() for line in lines)


def test_a_bundle_that_describes_nothing_is_refused(data: bytes) -> None:
    for about in ({}, {"observer": None}, {"observer": {}, "message": {}}, {"message": {"content_topic": 1}}):
        described: dict[str, object] = {"format": archive.FORMAT, **about}

        def describe(members: dict[str, bytes], described: dict[str, object] = described) -> None:
            members[ABOUT] = json.dumps(described).encode()

        altered = change(data, describe)
        with pytest.raises(LocalError, match="does not describe a message"):
            check(altered)
    with pytest.raises(LocalError, match="does not describe a message"):
        check(change(data, lambda m: m.update({"tables/delivery_status.jsonl": b""})))


def test_a_bundle_with_a_number_beyond_all_bounds_is_refused(data: bytes) -> None:
    def delay_for_ever(members: dict[str, bytes]) -> None:
        about = json.loads(members[ABOUT])
        about["observer"]["settle_delay_ms"] = float("inf")
        members[ABOUT] = json.dumps(about).encode()

    with pytest.raises(LocalError, match="does not describe a message"):
        check(change(data, delay_for_ever))


def test_a_member_of_a_later_version_is_named_and_not_judged(data: bytes) -> None:
    def add(members: dict[str, bytes]) -> None:
        members["logs/node-1.txt"] = b"line\n"
        members[SUMS] += b"0" * 64 + b"  logs/node-1.txt\n"

    checks = check(change(data, add))
    assert differing(checks) == []
    assert any(each.outcome is CheckOutcome.UNKNOWN and "logs/node-1.txt" in each.detail for each in checks)


def test_a_bundle_has_its_own_tables_and_no_others(data: bytes) -> None:
    lake = BundleSnapshot(read_bundle(data))
    shown = section(lake, (tables.ACKS.name, tables.CLOCK.name), lambda: lake.select("SELECT sds_id FROM acks"))
    assert shown.data
    assert shown.absent == ((tables.CLOCK.name, tables.CLOCK.writer),)


def test_too_much_evidence_is_refused(settings: Settings, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive, "MAX_ROWS", 3)
    with pytest.raises(LocalError, match="too much for a bundle"):
        collect(settings, of_channel(world, "field")[0].first_sds_id)


def test_the_commands_write_check_and_render(
    settings: Settings,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    message, out, page = of_channel(world, "field")[7], tmp_path / "x.zip", tmp_path / "x.html"
    shutil.copytree(settings.paths.data_dir, tmp_path / "tables")

    def run(*arguments: str) -> tuple[object, str]:
        with pytest.raises(SystemExit) as ended:
            main(["evidence", *arguments])
        return ended.value.code, "".join(capsys.readouterr())

    code, said = run("bundle", message.first_sds_id, "--out", str(out), "--tables", str(tmp_path / "tables"))
    assert (code, "SHA-256" in said) == (0, True)
    code, said = run("verify", str(out), "--html", str(page))
    assert code == 0 and "missing (segment_missing)" in said and "differs" not in said
    text = page.read_text()
    assert "segment_missing" in text.replace(" ", "_") and "cannot be checked" in text
    assert not re.search(r'(?:href|src|srcset)="(?!#|data:)', text)
    altered = change(
        out.read_bytes(), edit_rows("tables/delivery_status.jsonl", lambda row: row.update(verdict="delivered"))
    )
    out.write_bytes(altered)
    assert run("verify", str(out), "--html", str(page))[0] == 1
    nameless = edit_rows("tables/delivery_status.jsonl", lambda row: row.update(message_key=None))
    out.write_bytes(change(altered, nameless))
    assert run("verify", str(out), "--html", str(page))[0] == 2
    assert run("verify", str(tmp_path / "none.zip"))[0] == 2
    patient = settings.pipeline.model_copy(update={"settle_delay_ms": 864_000_000})
    monkeypatch.setattr("reliable_channel.config.load", lambda _: settings.model_copy(update={"pipeline": patient}))
    code, said = run("bundle", message.first_sds_id, "--out", str(out), "--tables", str(tmp_path / "tables"))
    assert code == 1 and "it follows: unknown (unsettled)" in said and "run --once --verdicts" in said
    assert run("bundle", "no such id", "--out", str(out), "--tables", str(tmp_path / "tables"))[0] == 2


def test_the_page_works_word_by_word(
    settings: Settings,
    world: World,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """docs/evidence-bundle.md, with the id of a message of this world."""
    page = ROOT / "docs" / "evidence-bundle.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELIABLE_CHANNEL__PATHS__DATA_DIR", settings.paths.data_dir)
    for block in blocks_of(page):
        if block.language == "python":
            exec(compile(block.text, str(block), "exec"), {"__name__": "example"})  # noqa: S102  our own document
        for command in block.commands() if block.language == "sh" else ():
            words = command.replace("a2f453bdd1f3", of_channel(world, "field")[7].first_sds_id).split()
            with pytest.raises(SystemExit) as ended:
                main(words[1:])
            assert ended.value.code == 0
    assert (tmp_path / "evidence.html").is_file()
    assert "missing segment_missing" in capsys.readouterr().out


def test_the_query_of_a_bundle_names_the_message_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = TableSnapshot(settings.paths)
    keys = [row["message_key"] for row in lake.select("SELECT message_key FROM delivery_status ORDER BY 1 LIMIT 2")]
    with pytest.raises(LocalError, match="No message"):
        collect(settings, "")
    with monkeypatch.context() as patched, pytest.raises(LocalError, match="Several messages"):
        patched.setattr(investigate, "LEAST", 0)
        collect(settings, "")
    assert read_bundle(collect(settings, keys[0])).about["message"]["message_key"] == keys[0]
