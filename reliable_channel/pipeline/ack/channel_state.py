"""The state of the ack job's channels: for each a snapshot, written rarely, and a journal of the rows taken since then.

Channels are kept in buckets, which are the keys of Spark's state store: a touched key costs milliseconds, an entry of a
bucket's map a tenth of one. A micro-batch appends its rows to the journal of each channel that it touches; when the
journal has grown to a part of the snapshot, a new snapshot takes its place. So a touch writes what came, not all that
the channel remembers. A journal consists of pages: the last one is written again with every micro-batch until it is
full, because each page costs a call when the channel is restored.

Workers keep the channels they used last as live objects (:class:`LiveChannels`). Nothing rests on that: each
micro-batch leaves a random token in the head of every bucket it wrote, and a worker uses what it has kept only if the
token of its own last micro-batch is one of the last in the head. A channel that other workers have advanced meanwhile
reads the journal on; one that is not kept is restored from its snapshot and the journal.

Rows that are read again are taken under the settings under which they were taken first. The state machine is the same:
a change of its rules needs a new :data:`STATE_VERSION`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa

from reliable_channel.core.sds import SdsParameters, Tracking
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.core.wire.bloom import FilterFamily, FilterFormat
from reliable_channel.core.wire.sds import WireFamily
from reliable_channel.pipeline.ack.observer import ChannelKey, ChannelObserver
from reliable_channel.pipeline.ack.records import row_of

STATE_VERSION = 9
"""Of the stored bytes and of the rules by which rows are taken. Up to version 3 a channel was one value; version 4 had
other rules for messages whose ids are not proven, version 5 for own repair requests that others repeat, version 6 for
which segments are forgotten when too many wait for the rest of their messages, version 8 for what a message that waits
counts for, and for when a missing id is given up among many, version 9 for compressed snapshots and for
journals in pages."""

SNAPSHOT_PART = 8
"""A journal may be this part of its snapshot, half of it up to one and a half times as much by the channel's name, so
that channels with equal traffic do not all write their snapshots at once. The larger the number, the less is replayed,
and the more is written. Of a channel that had to be restored the snapshot counts as it is stored, compressed:
such a channel is likely to be restored again. Of one that was kept it counts as it is in memory."""
LEAST_JOURNAL_BYTES = 8 * 1024
"""A journal may have so many bytes, however small its snapshot is."""
MOST_PAGES = 128
"""Pages of a journal since a snapshot."""
PAGE_BYTES = 2 * 1024
"""A page with so many bytes is full: a dozen rows, unless one has a Bloom filter. The more, the fewer pages are read
when a channel is restored, and the more of them is written again at every touch."""
ZSTD_LEVEL = 3
"""Of snapshots. With a log of 500, 281 KB become 84 in 0.5 ms of CPU; level 1: 98 in 0.4, level 6: 78 in 1.6."""
TOKENS = 32
"""So many micro-batches a worker may miss of a bucket and still use what it has kept."""
LIVE_BYTES = 160 * 1024 * 1024
"""Live channels in one worker, by the bytes of their snapshots; as objects they take about three times as much."""
EMPTY_BYTES = 4_000
"""What a live channel counts for besides: as objects an empty one takes 12 KB, and channel ids are free to invent."""
ROW_BYTES = 400
"""What a row adds to a snapshot, about."""

_SNAPSHOT, _SETTINGS = -1, -2
_ZSTD = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
_TOKEN_BYTES = 8


class BucketState(Protocol):
    """The stored state of one bucket: its head, and a map with keys (digest, number)."""

    def head(self) -> bytes | None: ...
    def set_head(self, value: bytes) -> None: ...
    def get(self, name: bytes, part: int) -> bytes | None: ...
    def put(self, name: bytes, part: int, value: bytes) -> None: ...
    def remove(self, name: bytes, part: int) -> None: ...


@dataclass(frozen=True)
class Rules:
    """The settings under which the rows of a channel are taken."""

    participant_id: str | None
    sds: SdsParameters
    expiry_ms: int | None

    def __post_init__(self) -> None:
        text = json.dumps(self._values(), sort_keys=True).encode()
        object.__setattr__(self, "stored", text)
        object.__setattr__(self, "digest", hashlib.sha256(text).digest()[:16])

    stored: bytes = field(init=False, compare=False)
    digest: bytes = field(init=False, compare=False)

    def _values(self) -> dict[str, object]:
        sds = {f.name: getattr(self.sds, f.name) for f in dataclasses.fields(SdsParameters) if f.name != "jitter"}
        sds["filter_format"] = dataclasses.asdict(self.sds.filter_format)
        return {"participant_id": self.participant_id, "expiry_ms": self.expiry_ms, "sds": sds}

    @classmethod
    def restored(cls, stored: bytes) -> Rules:
        """Those of :attr:`stored`."""
        values = json.loads(stored)
        sds = values["sds"]
        sds["wire_family"] = WireFamily(sds["wire_family"])
        sds["tracking"] = None if sds["tracking"] is None else Tracking(sds["tracking"])
        sds["filter_format"]["family"] = FilterFamily(sds["filter_format"]["family"])
        sds["filter_format"] = FilterFormat(**sds["filter_format"])
        return cls(values["participant_id"], SdsParameters(**sds), values["expiry_ms"])

    def observer(self, key: ChannelKey, state: bytes | None) -> ChannelObserver:
        """The channel of ``key`` with stored ``state``, or a new one."""
        if state is None:
            return ChannelObserver(key, self.participant_id, self.sds, self.expiry_ms)
        return ChannelObserver.from_bytes(state, key, self.participant_id, self.sds, self.expiry_ms)


_Given = tuple[str, bytes | None]
"""A row: its text and its Bloom filter."""


@dataclass(slots=True)
class Live:
    """A channel in this process, with what is stored of it: a snapshot as of the begin of page ``snapshot`` (0: none),
    and the journal from that page on. The channel has taken ``page_rows`` rows of the last page, ``page``."""

    observer: ChannelObserver
    rules: Rules
    snapshot: int = 0
    snapshot_bytes: int = 0
    stored_bytes: int = 0
    """Of the snapshot, compressed."""
    page: int = 0
    page_rows: int = 0
    page_bytes: int = 0
    open_page: list[_Given] | None = field(default_factory=list)
    """The rows of the last page; ``None`` once it is full."""
    journal_bytes: int = 0
    rows: int = 0
    was_kept: bool = False
    """Whether this process had the channel before this micro-batch."""
    has_new_rules: bool = False
    """Whether the rows of the journal came under other settings: what comes next needs a snapshot before it."""

    def turn_page(self) -> None:
        """Begin the next page."""
        self.page += 1
        self.page_rows, self.page_bytes, self.open_page = 0, 0, []

    def append(self, given: Sequence[_Given], page: pb.JournalPageProto) -> None:
        """The last page, which is ``page`` now, got these rows."""
        size = page.ByteSize()
        self.journal_bytes += size - self.page_bytes
        self.page_bytes = size
        self.page_rows += len(given)
        self.rows += len(given)
        self.open_page = None if page.full else [*(self.open_page or ()), *given]

    @property
    def size(self) -> int:
        """Bytes of a snapshot of it, about; the texts of the open page count as well."""
        return EMPTY_BYTES + self.snapshot_bytes + (self.rows + len(self.open_page or ())) * ROW_BYTES


@dataclass(slots=True)
class _Bucket:
    token: bytes = b""
    channels: dict[bytes, Live] = field(default_factory=dict)
    lagging: set[bytes] = field(default_factory=set)


class LiveChannels:
    """The channels that a process used last, of all buckets and queries, at most ``limit`` bytes of them."""

    def __init__(self, limit: int = LIVE_BYTES) -> None:
        self._limit = limit
        self._buckets: dict[tuple[str, int], _Bucket] = {}
        self._by_use: OrderedDict[tuple[tuple[str, int], bytes], int] = OrderedDict()
        self._bytes = 0

    def opened(self, scope: tuple[str, int], tokens: Sequence[bytes], token: bytes) -> None:
        """Begin a micro-batch, with ``token``, of a bucket whose head holds ``tokens``. From here on what is kept of it
        counts as of this micro-batch: if that is not committed, nothing of it is used again."""
        bucket = self._buckets.setdefault(scope, _Bucket())
        if not tokens or bucket.token != tokens[-1]:
            if bucket.token in tokens:
                bucket.lagging = set(bucket.channels)
            else:
                for name in bucket.channels:
                    self._bytes -= self._by_use.pop((scope, name))
                bucket.channels, bucket.lagging = {}, set()
        bucket.token = token

    def get(self, scope: tuple[str, int], name: bytes) -> tuple[Live | None, bool]:
        """A channel, and whether others may have advanced it."""
        bucket = self._buckets[scope]
        return bucket.channels.get(name), name in bucket.lagging

    def keep(self, scope: tuple[str, int], name: bytes, live: Live | None) -> None:
        """Keep a channel as it is now, or (``None``) forget it. Those not used longest go when it gets too much."""
        bucket = self._buckets.setdefault(scope, _Bucket())
        bucket.lagging.discard(name)
        self._bytes -= self._by_use.pop((scope, name), 0)
        if live is None:
            bucket.channels.pop(name, None)
            return
        bucket.channels[name] = live
        self._by_use[scope, name] = live.size
        self._bytes += live.size
        while self._bytes > self._limit and len(self._by_use) > 1:
            (where, oldest), size = self._by_use.popitem(last=False)
            self._bytes -= size
            del self._buckets[where].channels[oldest]
            if where != scope and not self._buckets[where].channels:
                del self._buckets[where]

    def __len__(self) -> int:
        return len(self._by_use)


LIVE = LiveChannels()
"""Those of this worker."""


class Channels:
    """The channels of one bucket in one micro-batch. ``rules_of``: the settings of a channel now; ``query_id``: whose
    bucket it is."""

    def __init__(
        self,
        state: BucketState,
        bucket: int,
        rules_of: Callable[[ChannelKey], Rules],
        query_id: str = "",
        live: LiveChannels = LIVE,
    ) -> None:
        self._state, self._live, self._rules_of_key = state, live, rules_of
        self._scope = (query_id, bucket)
        self._known_rules: dict[bytes, Rules] = {}
        self._used_rules: dict[bytes, Rules] = {}
        head = pb.BucketProto.FromString(state.head() or b"")
        if head.tokens and head.version != STATE_VERSION:
            raise RuntimeError(
                f"Ack state of version {head.version} is unknown to this program (it writes {STATE_VERSION})."
                " Run the program that wrote it, or start anew with `reliable-channel rebuild`."
            )
        self._tokens, self._settings = list(head.tokens), list(head.settings)
        self._token = os.urandom(_TOKEN_BYTES)
        self._removed = False
        live.opened(self._scope, self._tokens, self._token)

    def load(self, key: ChannelKey) -> Live:
        """The channel of ``key`` as the micro-batches before this one left it. It is no longer kept until :meth:`store`
        is called with it."""
        name = name_of(key)
        live, may_lag = self._live.get(self._scope, name)
        self._live.keep(self._scope, name, None)
        if live is not None and live.rules == self._rules_now(key) and (not may_lag or self._caught_up(live, name)):
            live.was_kept = True
            return live
        return self.restored(key)

    def restored(self, key: ChannelKey) -> Live:
        """The channel of ``key`` from what is stored of it."""
        name = name_of(key)
        stored = self._state.get(name, _SNAPSHOT)
        snapshot = pb.ChannelSnapshotProto.FromString(stored or b"")
        state = _ZSTD.decompress(snapshot.state, snapshot.size, asbytes=True) if stored else None
        pages = list(self._pages(name, snapshot.page))
        # The rows are taken under the settings they came under, beginning with the state itself.
        now = self._rules_now(key)
        rules = self._rules_of(pages[0].settings) if pages and pages[0].settings else now
        live = Live(rules.observer(key, state), rules, snapshot.page, snapshot.size, len(snapshot.state), snapshot.page)
        self._replay(live, pages)
        if rules != now:
            live.observer, live.rules = now.observer(key, live.observer.to_bytes()), now
            live.has_new_rules = True
        return live

    def store(self, key: ChannelKey, live: Live, texts: Sequence[str], filters: Sequence[bytes | None]) -> None:
        """The rows with these texts and filters were taken by the channel: append them to its journal, or write a
        snapshot when that would get too long, and when the channel has gone to rest."""
        name = name_of(key)
        if live.observer.is_blank:
            self._remove(name, live)
            return
        if texts:
            page = self._next_page(name, live, list(zip(texts, filters, strict=True)))
            if page is None:
                self._write_snapshot(name, live)
            self._state.put(name, live.page, b"" if page is None else page.SerializeToString())
        self._live.keep(self._scope, name, live)

    def close(self) -> None:
        """End the micro-batch: leave its token."""
        for digest in self._used_rules.keys() - set(self._settings):
            self._state.put(digest, _SETTINGS, self._used_rules[digest].stored)
            self._settings.append(digest)
        # A removed channel has no entry by which another worker could see that it is gone.
        tokens = [] if self._removed else self._tokens[-(TOKENS - 1) :]
        head = pb.BucketProto(version=STATE_VERSION, tokens=[*tokens, self._token], settings=self._settings)
        self._state.set_head(head.SerializeToString())

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _next_page(self, name: bytes, live: Live, given: Sequence[_Given]) -> pb.JournalPageProto | None:
        """The last page of the journal with these rows; ``None`` when a snapshot is to take the journal's place."""
        if live.has_new_rules or live.observer.rests or live.page - live.snapshot >= MOST_PAGES:
            return None
        snapshot_bytes = live.snapshot_bytes if live.was_kept else live.stored_bytes
        part = snapshot_bytes * (128 + name[0]) // (256 * SNAPSHOT_PART)
        room = max(LEAST_JOURNAL_BYTES, part) - live.journal_bytes
        if sum([len(text) // _COMPRESSION + len(some or b"") for text, some in given]) > room:
            return None
        rows = [*(live.open_page or ()), *given]
        page = pb.JournalPageProto(settings=live.rules.digest)
        page.rows = zlib.compress("\n".join([text for text, _ in rows]).encode(), 1)
        page.with_filter.extend([number for number, (_, some) in enumerate(rows) if some is not None])
        page.filters.extend([some for _, some in rows if some is not None])
        page.full = page.ByteSize() >= PAGE_BYTES
        if page.ByteSize() - (0 if live.open_page is None else live.page_bytes) > room:
            return None
        if live.open_page is None:
            live.turn_page()
        live.append(given, page)
        self._used_rules[live.rules.digest] = live.rules
        return page

    def _write_snapshot(self, name: bytes, live: Live) -> None:
        """The state as of the next page, which is empty. What was stored before it goes."""
        state = live.observer.to_bytes()
        packed = _ZSTD.compress(state, asbytes=True)
        self._remove_pages(name, live)
        live.turn_page()
        live.snapshot, live.snapshot_bytes, live.stored_bytes = live.page, len(state), len(packed)
        live.journal_bytes, live.rows, live.has_new_rules = 0, 0, False
        proto = pb.ChannelSnapshotProto(page=live.page, state=packed, size=len(state))
        self._state.put(name, _SNAPSHOT, proto.SerializeToString())

    def _caught_up(self, live: Live, name: bytes) -> bool:
        """Read the journal on. False when it no longer has the page up to which the channel came: there is a newer
        snapshot then."""
        pages = list(self._pages(name, live.page))
        self._replay(live, pages)
        return bool(pages)

    def _pages(self, name: bytes, first: int) -> Iterator[pb.JournalPageProto]:
        """The pages of a journal from ``first`` on. After one that is not full comes no other."""
        while (stored := self._state.get(name, first)) is not None:
            yield (page := pb.JournalPageProto.FromString(stored))
            if not page.full:
                return
            first += 1

    def _replay(self, live: Live, pages: Sequence[pb.JournalPageProto]) -> None:
        """Take the rows of the last page that the channel has not taken, and those of the pages after it."""
        for number, page in enumerate(pages, live.page):
            if number != live.page:
                live.turn_page()
            given = _rows_of(page)[live.page_rows :]
            for text, some in given:
                live.observer.take(row_of(json.loads(text), some))
            live.append(given, page)

    def _rules_now(self, key: ChannelKey) -> Rules:
        rules = self._rules_of_key(key)
        self._known_rules[rules.digest] = rules
        return rules

    def _rules_of(self, digest: bytes) -> Rules:
        if digest not in self._known_rules:
            stored = self._state.get(digest, _SETTINGS)
            if stored is None:
                raise RuntimeError(
                    "The ack state lacks settings that its journal names. Run `reliable-channel rebuild`."
                )
            self._known_rules[digest] = Rules.restored(stored)
        return self._known_rules[digest]

    def _remove(self, name: bytes, live: Live) -> None:
        if live.rows or live.snapshot:
            self._remove_pages(name, live)
            self._removed = True
        if live.snapshot:
            self._state.remove(name, _SNAPSHOT)

    def _remove_pages(self, name: bytes, live: Live) -> None:
        if live.rows or live.snapshot:
            for number in range(live.snapshot, live.page + 1):
                self._state.remove(name, number)


_COMPRESSION = 3
"""How much smaller a row's text gets, about."""


def name_of(key: ChannelKey) -> bytes:
    """The name of a channel in its bucket: names that strangers choose have any length."""
    return hashlib.sha256(json.dumps(key).encode()).digest()


def _rows_of(page: pb.JournalPageProto) -> list[_Given]:
    if not page.rows:
        return []
    filters = dict(zip(page.with_filter, page.filters, strict=True))
    texts = zlib.decompress(page.rows).decode().split("\n")
    return [(text, filters.get(number)) for number, text in enumerate(texts)]
