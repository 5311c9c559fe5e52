"""Measures the requests per second of our HTTP servers beside the floor: the same framework over a plain ``sqlite3``
table.

Each server runs in its own process and gets requests from one client over one persistent connection (sends: from
eight). The floor serves the same envelopes as prepared JSON from SQLite and is measured in the same run, because a
shared machine's load varies: the ratio to it means more than the figure.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake
from fastapi import FastAPI, Request
from fastapi.responses import Response

from bench.registry import SIZES, Result, bench
from reliable_channel.core.wire.waku import WakuMessage, encode_waku_message, message_hash
from reliable_channel.lake.create import create_table
from reliable_channel.lake.schema import arrow_schema
from reliable_channel.lake.tables import ENVELOPES
from reliable_channel.transport.waku_json import message_to_json

ENVELOPES_STORED = 200_000
_FILES = 20
_PUBSUB = "/waku/2/rs/16/32"
_START_NS = 1_795_254_432_521_844_140
_SECONDS = 4.0
_SLICES = 7
_TARGET_PAGES, _TARGET_LOOK_UPS, _TARGET_SENDS = 0.4, 0.4, 0.4
"""Shares of the floor's requests per second."""
_CLIENTS = 8
_FLOOR = "floor (sqlite3, framework)"


@bench
def store() -> Iterator[Result]:
    """Measure pages of 20 with data and look-ups by hash with data, of ``store serve`` and of the floor."""
    count = SIZES.scale_count(ENVELOPES_STORED, 2_000)
    with tempfile.TemporaryDirectory(prefix="bench-servers-") as name:
        directory = Path(name)
        hashes = _write_envelopes(directory, count)
        with _running(_store_command(), directory) as port:
            yield Result(f"store: first start, {count:,} envelopes, until the first page", _first_page_s(port), "s")
        with _running(_floor_command(directory), directory) as floor, _running(_store_command(), directory) as port:
            took = _first_page_s(port)
            yield Result(f"store: a later start, {count:,} envelopes, until the first page", took, "s")
            _first_page_s(floor)
            rates: dict[tuple[str, str], float] = {}
            for what, caller in (("pages", _pages), ("look-ups", _look_ups), ("any page", _jumps)):
                calls = {"floor": caller(floor, hashes), "store serve": caller(port, hashes)}
                rates |= {(server, what): rate for server, rate in _in_turns(calls).items()}
        for what, text, target in (
            ("pages", "pages of 20 with data", _TARGET_PAGES),
            ("look-ups", "look-ups by hash with data", _TARGET_LOOK_UPS),
            ("any page", "pages of 20 with data at random cursors", None),
        ):
            yield Result(f"store: {text}, {count:,} envelopes", rates["store serve", what], "1/s")
            yield Result(f"{_FLOOR}: {text}", rates["floor", what], "1/s")
            ratio = rates["store serve", what] / rates["floor", what]
            yield Result(f"store / floor: {text}", ratio, "ratio", target, against=_FLOOR)


@bench
def sends() -> Iterator[Result]:
    """Measure ``POST /send`` by eight clients over a node in memory with its records in a file, and inserts of the
    floor."""
    with tempfile.TemporaryDirectory(prefix="bench-servers-") as name:
        directory = Path(name)
        rates = []
        for text, command in (
            (f"{_FLOOR}: inserts", _floor_command(directory)),
            ("api: sends", [sys.executable, "-m", "bench.servers", "api", str(directory)]),
        ):
            with _running(command, directory) as port:
                rates.append(_sends(port))
                yield Result(f"{text}, {_CLIENTS} clients", rates[-1], "1/s")
        yield Result("api / floor: sends", rates[1] / rates[0], "ratio", _TARGET_SENDS, against=_FLOOR)


# -- requests ---------------------------------------------------------------------------------------------------------


class _Client:
    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def get(self, path: str) -> Any:
        self._connection.request("GET", path)
        return json.loads(self._answer(path))

    def post(self, path: str, body: bytes) -> None:
        self._connection.request("POST", path, body, {"Content-Type": "application/json"})
        self._answer(path)

    def _answer(self, path: str) -> bytes:
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{path}: {answer.status} {body[:200]!r}")
        return body


def _first_page_s(port: int) -> float:
    """Measure how long a server answers 503 after it has printed its address."""
    started = time.perf_counter()
    while (status := _status(port)) == 503 and time.perf_counter() - started < 300:
        time.sleep(0.05)
    if status != 200:
        raise RuntimeError(f"the server answers {status}")
    return time.perf_counter() - started


def _status(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/store/v3/messages?includeData=true")
    return connection.getresponse().status


def _in_turns(calls: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Measure the rate per second of each call: the median of one-second slices, alternating, after a short warm-up, so
    that other load affects all of them equally."""
    rates_by_name: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(50):
            call()
    for _ in range(SIZES.count_repetitions(_SLICES)):
        for name, call in calls.items():
            done, started = 0, time.perf_counter()
            while time.perf_counter() - started < 1.0:
                call()
                done += 1
            rates_by_name[name].append(done / (time.perf_counter() - started))
    return {name: statistics.median(rates) for name, rates in rates_by_name.items()}


def _pages(port: int, hashes: list[str]) -> Callable[[], None]:
    client, cursor = _Client(port), ""

    def next_page() -> None:
        nonlocal cursor
        page = client.get(f"/store/v3/messages?includeData=true&pageSize=20&pubsubTopic={_PUBSUB}&cursor={cursor}")
        if len(page["messages"]) != 20 or "message" not in page["messages"][0]:
            raise RuntimeError("a page is not what was asked for")
        cursor = page.get("paginationCursor", "")

    return next_page


def _jumps(port: int, hashes: list[str]) -> Callable[[], None]:
    client, choice = _Client(port), random.Random(2)
    early = hashes[: len(hashes) // 2]
    return lambda: client.get(f"/store/v3/messages?includeData=true&pageSize=20&cursor={choice.choice(early)}")


def _look_ups(port: int, hashes: list[str]) -> Callable[[], None]:
    client, choice = _Client(port), random.Random(1)

    def one() -> None:
        page = client.get(f"/store/v3/messages?includeData=true&hashes={choice.choice(hashes)}")
        if len(page["messages"]) != 1:
            raise RuntimeError("a look-up finds nothing")

    return one


def _sends(port: int) -> float:
    done: list[int] = []
    broken: list[Exception] = []
    end = time.perf_counter() + 2 * _SECONDS * min(1.0, SIZES.scale * 10)

    def send(number: int) -> None:
        client, calls = _Client(port), 0
        try:
            while time.perf_counter() < end:
                payload = base64.b64encode(b"%d/%d" % (number, calls)).decode()
                client.post("/send", json.dumps({"contentTopic": "/bench/1/x/proto", "payload": payload}).encode())
                calls += 1
        except Exception as error:
            broken.append(error)
        done.append(calls)

    threads = [threading.Thread(target=send, args=(number,)) for number in range(_CLIENTS)]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if broken:
        raise broken[0]
    return sum(done) / (time.perf_counter() - started)


# -- servers ----------------------------------------------------------------------------------------------------------


def _store_command() -> list[str]:
    return [sys.executable, "-m", "reliable_channel", "store", "serve", "--port", "0"]


def _floor_command(directory: Path) -> list[str]:
    return [sys.executable, "-m", "bench.servers", "floor", str(directory)]


@contextmanager
def _running(command: list[str], directory: Path) -> Iterator[int]:
    environment = {**os.environ, "RELIABLE_CHANNEL__PATHS__RUN_DIR": str(directory)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield int(line.rpartition("http://127.0.0.1:")[2].partition("/")[0])
    finally:
        process.terminate()
        process.wait(30)


def _write_envelopes(directory: Path, count: int) -> list[str]:
    """Write the same envelopes as a Delta table in ``tables/envelopes`` and as JSON in ``floor.sqlite``; returns their
    hashes."""
    table = directory / "tables" / "envelopes"
    create_table(table, ENVELOPES)
    schema = arrow_schema(ENVELOPES)
    floor = sqlite3.connect(directory / "floor.sqlite")
    floor.execute(
        "CREATE TABLE envelopes (timestamp_ns INTEGER, hash BLOB, entry TEXT, PRIMARY KEY (timestamp_ns, hash))"
    )
    floor.execute("CREATE INDEX by_hash ON envelopes (hash)")
    floor.execute("CREATE TABLE sent (id INTEGER PRIMARY KEY, body BLOB)")
    hashes: list[str] = []
    noise = random.Random(0)
    for begin in range(0, count, count // _FILES):
        rows, entries = [], []
        for number in range(begin, min(begin + count // _FILES, count)):
            message = WakuMessage(
                noise.randbytes(200), f"/bench/1/{number % 50}/proto", None, _START_NS + number * 1_000
            )
            digest, value = message_hash(_PUBSUB, message), encode_waku_message(message)
            hashes.append("0x" + digest.hex())
            rows.append(
                {
                    "kafka_topic": "bench",
                    "kafka_partition": 0,
                    "kafka_offset": number,
                    "pubsub_topic": _PUBSUB,
                    "content_topic": message.content_topic,
                    "message_hash": digest,
                    "value": value,
                    "value_bytes": len(value),
                    "sender_timestamp_ns": message.timestamp,
                    "ephemeral": False,
                }
            )
            entry = {"messageHash": hashes[-1], "message": message_to_json(message), "pubsubTopic": _PUBSUB}
            entries.append((message.timestamp, digest, json.dumps(entry)))
        write_deltalake(str(table), pa.Table.from_pylist(rows, schema), mode="append")
        floor.executemany("INSERT INTO envelopes VALUES (?, ?, ?)", entries)
    floor.commit()
    floor.close()
    return hashes


def _serve_floor(directory: Path) -> None:
    """Serve the same responses from prepared JSON: the cost of the framework, SQLite and our server alone."""
    app = FastAPI()
    database = sqlite3.connect(directory / "floor.sqlite", check_same_thread=False, isolation_level=None)
    if not (directory / "tables").exists():  # of :func:`sends`, which stores no envelopes
        database.execute("CREATE TABLE IF NOT EXISTS sent (id INTEGER PRIMARY KEY, body BLOB)")
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    lock = threading.Lock()

    @app.get("/store/v3/messages")
    def messages(request: Request) -> Response:
        query = request.query_params
        with lock:
            if hashes := query.get("hashes"):
                where, values = "hash = ?", (bytes.fromhex(hashes[2:]),)
            elif cursor := query.get("cursor"):
                digest = bytes.fromhex(cursor[2:])
                (after,) = database.execute("SELECT timestamp_ns FROM envelopes WHERE hash = ?", (digest,)).fetchone()
                where, values = "(timestamp_ns, hash) > (?, ?)", (after, digest)  # type: ignore[assignment]
            else:
                where, values = "1", ()  # type: ignore[assignment]
            rows = database.execute(
                f"SELECT hash, entry FROM envelopes WHERE {where} ORDER BY timestamp_ns, hash LIMIT 21",  # noqa: S608
                values,
            ).fetchall()
        cursor_out = f',"paginationCursor":"0x{rows[19][0].hex()}"' if len(rows) > 20 else ""
        entries = ",".join(entry for _, entry in rows[:20])
        body = f'{{"requestId":"x","statusCode":200,"statusDesc":"OK","messages":[{entries}]{cursor_out}}}'
        return Response(body, media_type="application/json")

    @app.post("/send")
    def send(body: dict[str, Any]) -> dict[str, str]:
        with lock:
            database.execute("INSERT INTO sent (body) VALUES (?)", (json.dumps(body),))
        return {"requestId": "x"}

    _serve(app)


def _serve_api(directory: Path) -> None:
    """Serve the Messaging API over a node in memory that accepts everything at once, with its records in a file."""
    from reliable_channel.messaging import MessagingConfig, MessagingNode
    from reliable_channel.messaging.rest.app import create_app
    from reliable_channel.transport.memory import MemoryNetwork

    config = MessagingConfig.of(mode="relay", cluster_id=16, shards=[32], bootstrap_nodes=[], max_records=100_000)
    network = MemoryNetwork()
    node = MessagingNode(config, network.node("bench"), directory / "messages.sqlite")
    threading.Thread(target=_pump, args=(network,), daemon=True).start()
    app = create_app(node)
    _serve(app, lifespan="on", on_stop=app.state.poll.stop)


def _pump(network: Any) -> None:
    """Let envelopes arrive, so that every request completes."""
    while True:
        network.pump()
        time.sleep(0.005)


def _serve(app: Any, **options: Any) -> None:
    from reliable_channel.transport.http.server import HttpServer, listen, url_of

    with listen("127.0.0.1", 0) as sock:
        print(f"{url_of('127.0.0.1', sock)}/", flush=True)
        HttpServer(app, **options).run(sockets=[sock])


if __name__ == "__main__":
    {"floor": _serve_floor, "api": _serve_api}[sys.argv[1]](Path(sys.argv[2]))
