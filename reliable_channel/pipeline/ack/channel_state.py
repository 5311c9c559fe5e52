"""Stores the state of the ack job's channels: for each a snapshot, written rarely, and a journal of the rows since
then (docs/pipeline.md, *The state of a channel*; docs/measurements-history.md, *Many channels*).

Channels are kept in buckets, which are the keys of Spark's state store: a touched key costs milliseconds, an entry of a
bucket's map a tenth of one. A micro-batch appends its rows to the journal of each channel it touches; when the journal
has grown to a fraction of the snapshot, a new snapshot replaces it. So a touch writes only new rows, not everything
that the channel remembers. A journal consists of pages. Each micro-batch rewrites the last page until it is full,
because each page costs a call when the channel is restored.

Workers cache the channels they used last as live objects (:class:`LiveChannels`). No result depends on this cache: each
micro-batch writes a random token into the head of every bucket it writes, and a worker uses its cache only if the token
of its own last micro-batch is one of the last in the head. For a channel that other workers have advanced since, it
reads the rest of the journal; a channel that is not cached is restored from its snapshot and the journal.

The bucket also remembers when its channels have something due (:mod:`.due_times`).

Replayed rows are processed under the settings of their first processing. The state machine must be the same: a change
of its rules needs a new :data:`STATE_VERSION`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from reliable_channel.core.sds import SdsParameters
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.core.wire.bloom import FilterFormat
from reliable_channel.lake.tables import TopicPartition
from reliable_channel.pipeline.ack.due_times import Due, DueTimes
from reliable_channel.pipeline.ack.observer import ChannelKey, ChannelObserver
from reliable_channel.pipeline.ack.records import load_fields, row_of

if TYPE_CHECKING:
    from reliable_channel.pipeline.ack.buckets import StoredBucket

STATE_VERSION = 15
"""The version of the stored bytes and of the rules by which rows are processed."""

SNAPSHOT_PART = 8
"""A journal may grow to the size of its snapshot divided by this. The limit varies between half and one and a half
times that by channel name, so that channels with equal traffic do not all write their snapshots at once. A larger
number replays less and writes more. For a restored channel the compressed size of the snapshot counts, because such a
channel is likely to be restored again; for a cached channel the size in memory."""
LEAST_JOURNAL_BYTES = 8 * 1024
"""The size (bytes) that a journal may have even if its snapshot is small."""
MOST_PAGES = 128
"""The maximum number of pages of a journal since its snapshot."""
PAGE_BYTES = 2 * 1024
"""A page is full at this size (bytes): a dozen rows, unless one has a Bloom filter. Larger pages mean fewer reads when
a channel is restored, and more bytes to rewrite at every touch."""
ZSTD_LEVEL = 3
"""Of snapshots. With a log of 500, 281 KB become 84 in 0.5 ms of CPU; level 1: 98 in 0.4, level 6: 78 in 1.6."""
TOKENS = 32
"""The number of micro-batches of a bucket that a worker may miss and still use its cache."""
LIVE_BYTES = 160 * 1024 * 1024
"""The maximum bytes of snapshots of live channels in one worker; as objects they take about three times as much."""
EMPTY_BYTES = 4_000
"""The fixed cost (bytes) of a live channel: an empty one takes 12 KB as objects, and anyone can invent channel ids."""
ROW_BYTES = 400
"""About how many bytes a row adds to a snapshot."""

_SNAPSHOT, _SETTINGS = -1, -2  # numbers that no page has: pages count from 0
_ZSTD = pa.Codec("zstd", compression_level=ZSTD_LEVEL)
_TOKEN_BYTES = 8


@dataclass(frozen=True)
class Rules:
    """The settings under which the rows of a channel are processed."""

    participant_id: str | None
    sds: SdsParameters
    expiry_ms: int | None

    def __post_init__(self) -> None:
        text = json.dumps(self._list_values(), sort_keys=True).encode()
        object.__setattr__(self, "stored", text)
        object.__setattr__(self, "digest", hashlib.sha256(text).digest()[:16])

    stored: bytes = field(init=False, compare=False)
    digest: bytes = field(init=False, compare=False)

    def _list_values(self) -> dict[str, object]:
        # Of what differs only in what a participant sends, an observer has the defaults.
        names = {f.name for f in dataclasses.fields(SdsParameters)} - {"jitter", "history_layout"}
        sds = {name: getattr(self.sds, name) for name in names}
        sds["filter_format"] = dataclasses.asdict(self.sds.filter_format)
        return {"participant_id": self.participant_id, "expiry_ms": self.expiry_ms, "sds": sds}

    @classmethod
    def restore(cls, stored: bytes) -> Rules:
        """Restore the settings from :attr:`stored`. A setting that no longer exists is left out."""
        values = json.loads(stored)
        existing = {f.name for f in dataclasses.fields(SdsParameters)}
        sds = {name: value for name, value in values["sds"].items() if name in existing}
        sds["filter_format"] = FilterFormat(**sds["filter_format"])
        return cls(values["participant_id"], SdsParameters(**sds), values["expiry_ms"])

    def observer(self, key: ChannelKey, state: bytes | None) -> ChannelObserver:
        """The channel of ``key`` with stored ``state``, or a new one."""
        if state is None:
            return ChannelObserver(key, self.participant_id, self.sds, self.expiry_ms)
        return ChannelObserver.from_bytes(state, key, self.participant_id, self.sds, self.expiry_ms)


Given = tuple[str, bytes | None]
"""The text and the Bloom filter of a row."""


@dataclass(slots=True)
class Live:
    """A channel in this process, and what is stored of it: a snapshot at the beginning of page ``snapshot`` (0: none),
    and the journal from that page on. The channel has processed ``page_rows`` rows of the last page, ``page``."""

    key: ChannelKey
    name: bytes
    """Of the channel in its bucket (:func:`name_of`)."""
    observer: ChannelObserver
    rules: Rules
    snapshot: int = 0
    snapshot_bytes: int = 0
    stored_bytes: int = 0
    """The size of the compressed snapshot."""
    page: int = 0
    page_rows: int = 0
    page_bytes: int = 0
    open_page: list[Given] | None = field(default_factory=list)
    """The rows of the last page; ``None`` once it is full."""
    journal_bytes: int = 0
    rows: int = 0
    was_kept: bool = False
    """Whether this process cached the channel before this micro-batch."""
    has_new_rules: bool = False
    """Whether the journal's rows have other settings, so that the next row needs a snapshot before it."""
    entered: tuple[int | None, int | None] = (None, None)
    """The due times (µs) of SDS and of the channel's end at the beginning of the micro-batch; the bucket has entries
    that are not later."""

    def turn_page(self) -> None:
        """Begin the next page."""
        self.page += 1
        self.page_rows, self.page_bytes, self.open_page = 0, 0, []

    def append(self, given: Sequence[Given], page: pb.JournalPageProto) -> None:
        """Note that these rows were added to the last page, which is now ``page``."""
        size = page.ByteSize()
        self.journal_bytes += size - self.page_bytes
        self.page_bytes = size
        self.page_rows += len(given)
        self.rows += len(given)
        self.open_page = None if page.full else [*(self.open_page or ()), *given]

    @property
    def size(self) -> int:
        """The approximate bytes of its snapshot; the texts of the open page count too."""
        return EMPTY_BYTES + self.snapshot_bytes + (self.rows + len(self.open_page or ())) * ROW_BYTES


@dataclass(slots=True)
class _Bucket:
    token: bytes = b""
    channels: dict[bytes, Live] = field(default_factory=dict)
    lagging: set[bytes] = field(default_factory=set)


class LiveChannels:
    """Caches the channels that a process used last, of all buckets and queries, up to ``limit`` bytes."""

    def __init__(self, limit: int = LIVE_BYTES) -> None:
        self._limit = limit
        self._buckets: dict[tuple[str, int], _Bucket] = {}
        self._by_use: OrderedDict[tuple[tuple[str, int], bytes], int] = OrderedDict()
        self._bytes = 0

    def open_bucket(self, scope: tuple[str, int], tokens: Sequence[bytes], token: bytes) -> None:
        """Begin a micro-batch, with ``token``, of a bucket whose head holds ``tokens``. From now on the cached bucket
        belongs to this micro-batch: if that is not committed, nothing of it is used again."""
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
        """A channel, and whether other workers may have advanced it."""
        bucket = self._buckets[scope]
        return bucket.channels.get(name), name in bucket.lagging

    def keep(self, scope: tuple[str, int], name: bytes, live: Live | None) -> None:
        """Cache a channel in its current state, or (``None``) forget it. Above the limit, the least recently used are
        dropped."""
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
"""The cache of this worker."""


class Channels:
    """The channels of one bucket in one micro-batch. ``rules_of``: the current settings of a channel; ``query_id``: the
    query to which the bucket belongs. Raises ``RuntimeError`` for state of another version."""

    def __init__(
        self,
        state: StoredBucket,
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
                " Run the program that wrote it, or start over with `reliable-channel rebuild`."
            )
        self._tokens, self._settings = list(head.tokens), list(head.settings)
        # Random, not the number of the micro-batch: a failed task and its repetition have one number, and only one of
        # them is committed.
        self._token = os.urandom(_TOKEN_BYTES)
        self._removed = False
        self._dues = DueTimes(state, head.due)
        self._due: set[Due] = set()
        self._is_open = False

    def due(self, ticks: Mapping[TopicPartition, int]) -> set[ChannelKey]:
        """The channels of which something may be due; each must be loaded and stored. ``ticks``: how far (event time,
        µs) each Kafka partition has advanced."""
        self._due = self._dues.take(ticks)
        return {due.key for due in self._due}

    def load(self, key: ChannelKey) -> Live:
        """The channel of ``key`` before this micro-batch. It leaves the cache until :meth:`store` is called with it."""
        if not self._is_open:
            self._live.open_bucket(self._scope, self._tokens, self._token)
            self._is_open = True
        name = name_of(key)
        live, may_lag = self._live.get(self._scope, name)
        self._live.keep(self._scope, name, None)
        if live is not None and live.rules == self._get_rules(key) and (not may_lag or self._catch_up(live)):
            live.was_kept = True
        else:
            live = self.restore(key)
        live.entered = (None, None) if live.has_new_rules else _find_due_times(live.observer)
        return live

    def restore(self, key: ChannelKey) -> Live:
        """Restore the channel of ``key`` from its stored state."""
        name = name_of(key)
        stored = self._state.get(name, _SNAPSHOT)
        snapshot = pb.ChannelSnapshotProto.FromString(stored or b"")
        state = _ZSTD.decompress(snapshot.state, snapshot.size, asbytes=True) if stored else None
        pages = list(self._read_pages(name, snapshot.page))
        # Rows are processed under their own settings, beginning with the state itself.
        now = self._get_rules(key)
        rules = self._load_rules(pages[0].settings) if pages and pages[0].settings else now
        observer, page = rules.observer(key, state), snapshot.page
        live = Live(key, name, observer, rules, page, snapshot.size, len(snapshot.state), page)
        self._replay(live, pages)
        if rules != now:
            live.observer, live.rules = now.observer(key, live.observer.to_bytes()), now
            live.has_new_rules = True
        return live

    def store(self, live: Live, given: Sequence[Given]) -> None:
        """Store the rows that the channel has processed: append them to its journal, or write a snapshot if the journal
        would get too long, or if the channel has become dormant. Its next due times are entered."""
        self._enter(live)
        if live.observer.is_blank:
            self._remove(live)
            return
        if given:
            page = self._next_page(live, given)
            if page is None:
                self._write_snapshot(live)
            self._state.put(live.name, live.page, b"" if page is None else page.SerializeToString())
        self._live.keep(self._scope, live.name, live)

    def close(self) -> None:
        """End the micro-batch: write its token, unless no channel was loaded."""
        if not self._is_open:
            return
        for digest in self._used_rules.keys() - set(self._settings):
            self._state.put(digest, _SETTINGS, self._used_rules[digest].stored)
            self._settings.append(digest)
        # A removed channel has no entry that would show another worker that it is gone.
        tokens = [] if self._removed else self._tokens[-(TOKENS - 1) :]
        head = pb.BucketProto(
            version=STATE_VERSION, tokens=[*tokens, self._token], settings=self._settings, due=self._dues.write()
        )
        self._state.set_head(head.SerializeToString())

    # ---- helpers -------------------------------------------------------------------------------------------------

    def _enter(self, live: Live) -> None:
        """Enter the channel's due times that have no entry, or only later ones."""
        for is_end, due_us in enumerate(_find_due_times(live.observer)):
            due, entered = Due(live.key, bool(is_end)), live.entered[is_end]
            if due_us is not None and (due in self._due or entered is None or due_us < entered):
                self._dues.add(live.observer.topic_partition, due, due_us)

    def _next_page(self, live: Live, given: Sequence[Given]) -> pb.JournalPageProto | None:
        """The last page of the journal with these rows; ``None`` if a snapshot must replace the journal."""
        if live.has_new_rules or live.observer.is_dormant or live.page - live.snapshot >= MOST_PAGES:
            return None
        snapshot_bytes = live.snapshot_bytes if live.was_kept else live.stored_bytes
        # The first byte of a digest is any of 256: from a half to one and a half times the limit.
        part = snapshot_bytes * (128 + live.name[0]) // (256 * SNAPSHOT_PART)
        room = max(LEAST_JOURNAL_BYTES, part) - live.journal_bytes
        # An estimate first: rows for which there is no room are not compressed.
        if sum([len(text) // _COMPRESSION + len(some or b"") for text, some in given]) > room:
            return None
        rows = [*(live.open_page or ()), *given]
        page = pb.JournalPageProto(settings=live.rules.digest)
        # JSON escapes line breaks, so a text has none. Filters are apart, since those in use do not shrink.
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

    def _write_snapshot(self, live: Live) -> None:
        """Write the state as a snapshot at the beginning of the next page, which is empty, and remove the pages before
        it."""
        state = live.observer.to_bytes()
        packed = _ZSTD.compress(state, asbytes=True)
        self._remove_pages(live)
        live.turn_page()
        live.snapshot, live.snapshot_bytes, live.stored_bytes = live.page, len(state), len(packed)
        live.journal_bytes, live.rows, live.has_new_rules = 0, 0, False
        proto = pb.ChannelSnapshotProto(page=live.page, state=packed, size=len(state))
        self._state.put(live.name, _SNAPSHOT, proto.SerializeToString())

    def _catch_up(self, live: Live) -> bool:
        """Read the rest of the journal. False if it no longer has the page that the channel has reached, because there
        is a newer snapshot."""
        pages = list(self._read_pages(live.name, live.page))
        self._replay(live, pages)
        return bool(pages)

    def _read_pages(self, name: bytes, first: int) -> Iterator[pb.JournalPageProto]:
        """The pages of a journal from ``first`` on. A page that is not full is the last one."""
        while (stored := self._state.get(name, first)) is not None:
            yield (page := pb.JournalPageProto.FromString(stored))
            if not page.full:
                return
            first += 1

    def _replay(self, live: Live, pages: Sequence[pb.JournalPageProto]) -> None:
        """Process the rows of the last page that the channel has not processed, and those of the pages after it."""
        for number, page in enumerate(pages, live.page):
            if number != live.page:
                live.turn_page()
            given = _parse_rows(page)[live.page_rows :]
            for text, some in given:  # not guarded: rows that fail are not stored (ack/stream.py, process_channel)
                live.observer.take(row_of(load_fields(text), some))
            live.append(given, page)

    def _get_rules(self, key: ChannelKey) -> Rules:
        rules = self._rules_of_key(key)
        self._known_rules[rules.digest] = rules
        return rules

    def _load_rules(self, digest: bytes) -> Rules:
        if digest not in self._known_rules:
            stored = self._state.get(digest, _SETTINGS)
            if stored is None:
                raise RuntimeError(
                    "The ack state lacks settings that its journal names. Run `reliable-channel rebuild`."
                )
            self._known_rules[digest] = Rules.restore(stored)
        return self._known_rules[digest]

    def _remove(self, live: Live) -> None:
        if live.rows or live.snapshot:
            self._remove_pages(live)
            self._removed = True
        if live.snapshot:
            self._state.remove(live.name, _SNAPSHOT)

    def _remove_pages(self, live: Live) -> None:
        if live.rows or live.snapshot:
            for number in range(live.snapshot, live.page + 1):
                self._state.remove(live.name, number)


def _find_due_times(observer: ChannelObserver) -> tuple[int | None, int | None]:
    return observer.timer_due_us(), observer.end_due_us()


_COMPRESSION = 3
"""About how many times smaller compression makes a row's text."""


def name_of(key: ChannelKey) -> bytes:
    """The name of a channel in its bucket, a digest because strangers choose names of any length."""
    return hashlib.sha256(json.dumps(key).encode()).digest()


def _parse_rows(page: pb.JournalPageProto) -> list[Given]:
    if not page.rows:
        return []
    filters = dict(zip(page.with_filter, page.filters, strict=True))
    texts = zlib.decompress(page.rows).decode().split("\n")
    return [(text, filters.get(number)) for number, text in enumerate(texts)]
