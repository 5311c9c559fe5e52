"""The state of the ack job's channels: for each a snapshot, written rarely, and a journal of the rows taken since then.

Channels are kept in buckets, which are the keys of Spark's state store: a touched key costs milliseconds, an entry of a
bucket's map a tenth of one. A micro-batch appends its rows to the journal of each channel that it touches; when the
journal has grown to a part of the snapshot, a new snapshot takes its place. So a touch writes what came, not all that
the channel remembers.

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

from reliable_channel.core.sds import SdsParameters, Tracking
from reliable_channel.core.wire._pb import pipeline_state_pb2 as pb
from reliable_channel.core.wire.bloom import FilterFamily, FilterFormat
from reliable_channel.core.wire.sds import WireFamily
from reliable_channel.pipeline.ack.observer import ChannelKey, ChannelObserver
from reliable_channel.pipeline.ack.records import InputRow, row_of

STATE_VERSION = 8
"""Of the stored bytes and of the rules by which rows are taken. Up to version 3 a channel was one value; version 4 had
other rules for messages whose ids are not proven, version 5 for own repair requests that others repeat, version 6 for
which segments are forgotten when too many wait for the rest of their messages, version 8 for what a message that waits
counts for, and for when a missing id is given up among many."""

SNAPSHOT_PART = 8
"""A journal may be this part of its snapshot, half of it up to one and a half times as much by the channel's name, so
that channels with equal traffic do not all write their snapshots at once. The larger the number, the less is replayed,
and the more is written."""
LEAST_JOURNAL_BYTES = 8 * 1024
"""A journal may have so many bytes, however small its snapshot is."""
MOST_ENTRIES = 128
"""Journal entries since a snapshot."""
TOKENS = 32
"""So many micro-batches a worker may miss of a bucket and still use what it has kept."""
LIVE_BYTES = 160 * 1024 * 1024
"""Live channels in one worker, by the bytes of their snapshots; as objects they take about three times as much."""
EMPTY_BYTES = 4_000
"""What a live channel counts for besides: as objects an empty one takes 12 KB, and channel ids are free to invent."""
ROW_BYTES = 400
"""What a row adds to a snapshot, about."""

_SNAPSHOT, _SETTINGS = -1, -2
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


@dataclass(slots=True)
class Live:
    """A channel in this process, with what is stored of it: a snapshot as of journal entry ``snapshot`` (0: none) and
    the entries after it, up to ``sequence``."""

    observer: ChannelObserver
    rules: Rules
    sequence: int = 0
    snapshot: int = 0
    snapshot_bytes: int = 0
    journal_bytes: int = 0
    rows: int = 0

    @property
    def size(self) -> int:
        """Bytes of a snapshot of it, about."""
        return EMPTY_BYTES + self.snapshot_bytes + self.rows * ROW_BYTES


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
        if (
            live is not None
            and live.rules == self._rules_now(key)
            and (not may_lag or self._caught_up(live, name, key))
        ):
            return live
        return self.restored(key)

    def restored(self, key: ChannelKey) -> Live:
        """The channel of ``key`` from what is stored of it."""
        name = name_of(key)
        stored = self._state.get(name, _SNAPSHOT)
        snapshot = pb.ChannelSnapshotProto.FromString(stored or b"")
        entries = list(self._entries(name, snapshot.sequence))
        # Rows are taken under the settings they came under, beginning with the state itself.
        now = self._rules_now(key)
        rules = self._rules_of(entries[0].settings) if entries else now
        observer = rules.observer(key, snapshot.state if stored else None)
        live = Live(observer, rules, snapshot.sequence, snapshot.sequence, len(snapshot.state))
        self._replay(live, key, entries)
        self._change(live, key, now)
        return live

    def store(self, key: ChannelKey, live: Live, texts: Sequence[str], filters: Sequence[bytes | None]) -> None:
        """The rows with these texts and filters were taken by the channel: append them to its journal, or write a
        snapshot when that would get too long, and when the channel has gone to rest."""
        name = name_of(key)
        if live.observer.is_blank:
            self._remove(name, live)
            return
        part = live.snapshot_bytes * (128 + name[0]) // (256 * SNAPSHOT_PART)
        room = max(LEAST_JOURNAL_BYTES, part) - live.journal_bytes
        entry = b""
        if live.sequence - live.snapshot < MOST_ENTRIES and not live.observer.rests:
            about = sum(map(len, texts)) // _COMPRESSION + sum(len(each) for each in filters if each is not None)
            entry = self._entry(live.rules, texts, filters) if about <= room else b""
        if entry and len(entry) <= room:
            live.journal_bytes += len(entry)
            live.rows += len(texts)
            live.sequence += 1
        else:
            entry = b""
            self._write_snapshot(name, live)
        self._state.put(name, live.sequence, entry)
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

    def _write_snapshot(self, name: bytes, live: Live) -> None:
        """The state as of the next entry. What was stored before it goes."""
        state = live.observer.to_bytes()
        self._remove_entries(name, live)
        live.sequence += 1
        live.snapshot, live.snapshot_bytes, live.journal_bytes, live.rows = live.sequence, len(state), 0, 0
        proto = pb.ChannelSnapshotProto(sequence=live.sequence, state=state)
        self._state.put(name, _SNAPSHOT, proto.SerializeToString())

    def _entry(self, rules: Rules, texts: Sequence[str], filters: Sequence[bytes | None]) -> bytes:
        self._used_rules[rules.digest] = rules
        entry = pb.JournalEntryProto(settings=rules.digest)
        entry.rows = zlib.compress(f"[{','.join(texts)}]".encode(), 1)
        entry.with_filter.extend([number for number, each in enumerate(filters) if each is not None])
        entry.filters.extend([each for each in filters if each is not None])
        return entry.SerializeToString()

    def _caught_up(self, live: Live, name: bytes, key: ChannelKey) -> bool:
        """Read the journal on. False when it no longer has the entry up to which the channel came: there is a newer
        snapshot then."""
        if self._state.get(name, live.sequence) is None:
            return False
        now = live.rules
        self._replay(live, key, list(self._entries(name, live.sequence)))
        self._change(live, key, now)
        return True

    def _entries(self, name: bytes, after: int) -> Iterator[pb.JournalEntryProto]:
        while (stored := self._state.get(name, after + 1)) is not None:
            yield pb.JournalEntryProto.FromString(stored)
            after += 1

    def _replay(self, live: Live, key: ChannelKey, entries: Sequence[pb.JournalEntryProto]) -> None:
        """Take the rows of the next journal entries again, each under the settings they came under."""
        for entry in entries:
            self._change(live, key, self._rules_of(entry.settings))
            rows = _rows_of(entry)
            for row in rows:
                live.observer.take(row)
            live.sequence += 1
            live.journal_bytes += entry.ByteSize()
            live.rows += len(rows)

    def _change(self, live: Live, key: ChannelKey, rules: Rules) -> None:
        """Let a channel go on under ``rules``."""
        if live.rules != rules:
            live.observer, live.rules = rules.observer(key, live.observer.to_bytes()), rules

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
        if live.sequence:
            self._remove_entries(name, live)
            self._removed = True
        if live.snapshot:
            self._state.remove(name, _SNAPSHOT)

    def _remove_entries(self, name: bytes, live: Live) -> None:
        for number in range(max(live.snapshot, 1), live.sequence + 1):
            self._state.remove(name, number)


_COMPRESSION = 3
"""How much smaller a row's text gets, about."""


def name_of(key: ChannelKey) -> bytes:
    """The name of a channel in its bucket: names that strangers choose have any length."""
    return hashlib.sha256(json.dumps(key).encode()).digest()


def _rows_of(entry: pb.JournalEntryProto) -> list[InputRow]:
    filters = dict(zip(entry.with_filter, entry.filters, strict=True))
    texts = json.loads(zlib.decompress(entry.rows))
    return [row_of(fields, filters.get(number)) for number, fields in enumerate(texts)]
