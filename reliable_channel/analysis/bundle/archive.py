"""Writes and reads the file of a bundle: a ZIP archive of uncompressed members, the same bytes for the same members.

``bundle.json`` is about the bundle, ``tables/<table>.jsonl`` has rows, ``envelopes/<message hash>.bin`` raw envelopes,
and ``SHA256SUMS`` the digests of all other members. Nothing is compressed, so no file is larger when it is read.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import io
import json
import re
import struct
import zipfile
from collections.abc import Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from reliable_channel.core.errors import LocalError
from reliable_channel.lake.read import in_our_time
from reliable_channel.lake.schema import as_arrow
from reliable_channel.lake.tables import BY_NAME, HISTORY_TYPE, Table

FORMAT = "reliable-channel-evidence/1"
ABOUT, SUMS = "bundle.json", "SHA256SUMS"
MAX_BYTES = 64 * 1024 * 1024
MAX_MEMBERS, MAX_ROWS, MAX_LINE_BYTES = 20_000, 50_000, 8 * 1024 * 1024
"""The most members of a bundle, the most rows in all its tables, and the longest row."""
MAX_FILE_BYTES = MAX_BYTES + 1024 * MAX_MEMBERS
_NAME = re.compile(r"bundle\.json|SHA256SUMS|[a-z_]{1,40}/[a-z0-9_-]{1,80}\.[a-z]{1,8}", re.ASCII)
_REMEDY = "Ask for the file again; `sha256sum` tells whether it arrived as it was sent."


class Bundle(NamedTuple):
    """The content of a bundle. ``altered``: the members whose bytes are not those in ``SHA256SUMS``, or what else of
    the file is not as it was written; ``unknown``: the members of a kind that this version does not know."""

    about: dict[str, Any]
    tables: dict[Table, pa.Table]
    envelopes: dict[bytes, bytes]
    members: int
    altered: list[str]
    unknown: list[str]


def write_bundle(about: Mapping[str, Any], tables: Mapping[Table, pa.Table], envelopes: Mapping[bytes, bytes]) -> bytes:
    """The file of a bundle. Raises ``LocalError`` if it would be larger than :func:`read_bundle` accepts."""
    members = {ABOUT: json.dumps({"format": FORMAT, **about}, indent=1, sort_keys=True).encode() + b"\n"}
    for table, rows in tables.items():
        members[f"tables/{table.name}.jsonl"] = _write_rows(rows)
    members.update({f"envelopes/{digest.hex()}.bin": value for digest, value in envelopes.items()})
    rows_in_all = sum(rows.num_rows for rows in tables.values())
    if rows_in_all > MAX_ROWS or len(members) > MAX_MEMBERS or sum(map(len, members.values())) > MAX_BYTES:
        raise LocalError(
            f"The evidence is too much for a bundle: {rows_in_all} rows, {len(members)} members.",
            "Look at it in the tables (`reliable-channel sql`).",
        )
    members[SUMS] = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(members.items())
    ).encode()
    return _pack(members)


def read_bundle(data: bytes) -> Bundle:
    """Read the file of a bundle, whoever wrote it. Raises ``LocalError`` if it is none, or too large."""
    try:
        # A bundle comes from anybody: everything is bounded before it is read further.
        members = _unpack(data)
        if max(len(members[ABOUT]), len(members[SUMS])) > MAX_LINE_BYTES:
            raise ValueError(f"{ABOUT} or {SUMS} has more than {MAX_LINE_BYTES} bytes")
        altered = _find_altered(members) + ([] if _pack(members) == data else ["the archive itself"])
        about = json.loads(members[ABOUT])
        if not isinstance(about, dict) or about.get("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        if sum(content.count(b"\n") for name, content in members.items() if name.endswith(".jsonl")) > MAX_ROWS:
            raise ValueError(f"more than {MAX_ROWS} rows")
        tables, envelopes, unknown = {}, {}, []
        for name, content in members.items():
            kind, _, rest = name.partition("/")
            stem = rest.partition(".")[0]
            if kind == "tables" and stem in BY_NAME and name.endswith(".jsonl"):
                tables[BY_NAME[stem]] = _read_rows(content, BY_NAME[stem])
            elif kind == "envelopes" and re.fullmatch("[0-9a-f]{64}[.]bin", rest):
                envelopes[bytes.fromhex(stem)] = content
            elif name not in (ABOUT, SUMS):
                unknown.append(name)
        return Bundle(about, tables, envelopes, len(members), altered, unknown)
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, struct.error) as error:
        raise LocalError(f"This is no bundle of evidence: {type(error).__name__}.", _REMEDY) from error
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise LocalError(f"This is no bundle of evidence: {str(error)[:200]!a}.", _REMEDY) from error


def write_time(time: dt.datetime) -> str:
    """A time as bundles have it."""
    return time.astimezone(dt.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def _pack(members: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(members.items()):
            # Of 1980 and sorted, so that the same tables give the same bytes whoever writes them, and whenever.
            member = zipfile.ZipInfo(name)
            member.create_system, member.external_attr = 3, 0o644 << 16
            archive.writestr(member, content)
    return packed.getvalue()


def _unpack(data: bytes) -> dict[str, bytes]:
    """The members by name. Their sizes add up to less than the file's, so they overlap nowhere and none expands."""
    if len(data) > MAX_FILE_BYTES:
        raise ValueError(f"it has more than {MAX_FILE_BYTES} bytes")
    # The directory's length, which bounds what zipfile reads of it. Bundles have no comment and need no ZIP64: the
    # record at the end has 22 bytes, and a locator for ZIP64 would be the 20 before it (APPNOTE.TXT, 4.3.15, 4.3.16).
    end, length = data[-22:], int.from_bytes(data[-10:-6], "little")
    if end[:4] != b"PK\5\6" or end[-2:] != bytes(2) or data[-42:-38] == b"PK\6\7" or length > 200 * MAX_MEMBERS:
        raise ValueError("it has no directory as bundles have it")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        listed = archive.infolist()
        names = {member.filename for member in listed}
        if len(listed) > MAX_MEMBERS + 1 or len(names) < len(listed):
            raise ValueError("it has too many members, or two of one name")
        if any(member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1 for member in listed):
            raise ValueError("a member is compressed or encrypted")
        if sum(member.file_size for member in listed) > len(data):
            raise ValueError("its members are larger than itself")
        if odd := [name for name in names if not _NAME.fullmatch(name)]:
            raise ValueError(f"a member is named {odd[0][:80]}")
        return {member.filename: archive.read(member) for member in listed}


def _find_altered(members: Mapping[str, bytes]) -> list[str]:
    """The members whose digests differ from ``SHA256SUMS``, and those that are missing from it or from the archive."""
    lines = [line.split("  ", 1) for line in members[SUMS].decode("ascii").splitlines()]
    sums = {name: digest for digest, name in lines}
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in members.items() if name != SUMS}
    return sorted(name for name in sums.keys() | digests.keys() if sums.get(name) != digests.get(name))


def _write_rows(rows: pa.Table) -> bytes:
    lines = [json.dumps(row, default=_to_plain, ensure_ascii=True) for row in rows.to_pylist()]
    return "".join(f"{line}\n" for line in sorted(lines)).encode()


def _to_plain(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex()
    assert isinstance(value, dt.datetime)  # noqa: S101 - the tables have no other type
    return write_time(value)


_KINDS: dict[str, type] = {"STRING": str, "INT": int, "BIGINT": int, "DOUBLE": float, "BOOLEAN": bool}


def _read_rows(content: bytes, table: Table) -> pa.Table:
    types = {column.name: column.type for column in table.columns}
    rows = [_read_row(line, types) for line in content.splitlines()]
    arrow = in_our_time(as_arrow(rows, table))
    if empty := [field.name for field in arrow.schema if not field.nullable and arrow[field.name].null_count]:
        raise ValueError(f"a row of {table.name} has no {empty[0]}")
    return arrow


def _read_row(line: bytes, types: Mapping[str, str]) -> dict[str, Any]:
    if len(line) > MAX_LINE_BYTES:
        raise ValueError(f"a row has more than {MAX_LINE_BYTES} bytes")
    return {name: _parse_value(value, types[name]) for name, value in json.loads(line.decode("ascii")).items()}


def _parse_value(value: Any, kind: str) -> Any:
    """A value of a column of a type; raises ``ValueError`` and others for one of another type."""
    if value is None:
        return None
    if kind == "BINARY":
        return bytes.fromhex(value)
    if kind == "TIMESTAMP":
        return dt.datetime.fromisoformat(value)
    if kind == HISTORY_TYPE:
        names = {"sds_id": "STRING", "retrieval_hint": "BINARY", "sender_id": "STRING"}
        return [{name: _parse_value(entry[name], of) for name, of in names.items()} for entry in value]
    if kind.startswith("ARRAY<"):
        return [_parse_value(each, kind[len("ARRAY<") : -1]) for each in value]
    if not isinstance(value, _KINDS[kind]):
        raise ValueError(f"{type(value).__name__} is no {kind}")
    return value
