from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HashStateProto(_message.Message):
    __slots__ = ("scopes",)
    SCOPES_FIELD_NUMBER: _ClassVar[int]
    scopes: _containers.RepeatedCompositeFieldContainer[ScopeStateProto]
    def __init__(self, scopes: _Optional[_Iterable[_Union[ScopeStateProto, _Mapping]]] = ...) -> None: ...

class ScopeStateProto(_message.Message):
    __slots__ = ("scope", "kafka_topic", "kafka_partition", "reassembler")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    KAFKA_TOPIC_FIELD_NUMBER: _ClassVar[int]
    KAFKA_PARTITION_FIELD_NUMBER: _ClassVar[int]
    REASSEMBLER_FIELD_NUMBER: _ClassVar[int]
    scope: _containers.RepeatedScalarFieldContainer[str]
    kafka_topic: str
    kafka_partition: int
    reassembler: bytes
    def __init__(self, scope: _Optional[_Iterable[str]] = ..., kafka_topic: _Optional[str] = ..., kafka_partition: _Optional[int] = ..., reassembler: _Optional[bytes] = ...) -> None: ...

class ObserverStateProto(_message.Message):
    __slots__ = ("channel", "now_ms", "row_seq", "delivery_seq", "pending", "kafka_topic", "kafka_partition", "last_heard_ms", "finished", "waiting", "parts", "settled", "ephemerals", "needed_ids", "needed_by_ids", "dormant_since_ms")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    ROW_SEQ_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_SEQ_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    KAFKA_TOPIC_FIELD_NUMBER: _ClassVar[int]
    KAFKA_PARTITION_FIELD_NUMBER: _ClassVar[int]
    LAST_HEARD_MS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    EPHEMERALS_FIELD_NUMBER: _ClassVar[int]
    NEEDED_IDS_FIELD_NUMBER: _ClassVar[int]
    NEEDED_BY_IDS_FIELD_NUMBER: _ClassVar[int]
    DORMANT_SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    channel: bytes
    now_ms: int
    row_seq: int
    delivery_seq: int
    pending: _containers.RepeatedCompositeFieldContainer[PendingProto]
    kafka_topic: str
    kafka_partition: int
    last_heard_ms: int
    finished: _containers.RepeatedScalarFieldContainer[bytes]
    waiting: SeenColumnsProto
    parts: SeenColumnsProto
    settled: SeenColumnsProto
    ephemerals: _containers.RepeatedScalarFieldContainer[bytes]
    needed_ids: _containers.RepeatedScalarFieldContainer[str]
    needed_by_ids: _containers.RepeatedScalarFieldContainer[str]
    dormant_since_ms: int
    def __init__(self, channel: _Optional[bytes] = ..., now_ms: _Optional[int] = ..., row_seq: _Optional[int] = ..., delivery_seq: _Optional[int] = ..., pending: _Optional[_Iterable[_Union[PendingProto, _Mapping]]] = ..., kafka_topic: _Optional[str] = ..., kafka_partition: _Optional[int] = ..., last_heard_ms: _Optional[int] = ..., finished: _Optional[_Iterable[bytes]] = ..., waiting: _Optional[_Union[SeenColumnsProto, _Mapping]] = ..., parts: _Optional[_Union[SeenColumnsProto, _Mapping]] = ..., settled: _Optional[_Union[SeenColumnsProto, _Mapping]] = ..., ephemerals: _Optional[_Iterable[bytes]] = ..., needed_ids: _Optional[_Iterable[str]] = ..., needed_by_ids: _Optional[_Iterable[str]] = ..., dormant_since_ms: _Optional[int] = ...) -> None: ...

class SeenColumnsProto(_message.Message):
    __slots__ = ("keys", "seen")
    KEYS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    seen: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, keys: _Optional[_Iterable[str]] = ..., seen: _Optional[_Iterable[bytes]] = ...) -> None: ...

class SeenProto(_message.Message):
    __slots__ = ("kafka_topic", "kafka_partition", "kafka_offset", "first_seen_ms", "segment_kind", "entire_message_hash", "segment_index", "data_count", "parity_count", "sender_timestamp_ns", "content_bytes", "copies", "repaired_by", "lost", "late", "sender_verified", "digest")
    KAFKA_TOPIC_FIELD_NUMBER: _ClassVar[int]
    KAFKA_PARTITION_FIELD_NUMBER: _ClassVar[int]
    KAFKA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_KIND_FIELD_NUMBER: _ClassVar[int]
    ENTIRE_MESSAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARITY_COUNT_FIELD_NUMBER: _ClassVar[int]
    SENDER_TIMESTAMP_NS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_BY_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    SENDER_VERIFIED_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    kafka_topic: str
    kafka_partition: int
    kafka_offset: int
    first_seen_ms: int
    segment_kind: str
    entire_message_hash: str
    segment_index: int
    data_count: int
    parity_count: int
    sender_timestamp_ns: int
    content_bytes: int
    copies: int
    repaired_by: str
    lost: _containers.RepeatedScalarFieldContainer[str]
    late: bool
    sender_verified: bool
    digest: bytes
    def __init__(self, kafka_topic: _Optional[str] = ..., kafka_partition: _Optional[int] = ..., kafka_offset: _Optional[int] = ..., first_seen_ms: _Optional[int] = ..., segment_kind: _Optional[str] = ..., entire_message_hash: _Optional[str] = ..., segment_index: _Optional[int] = ..., data_count: _Optional[int] = ..., parity_count: _Optional[int] = ..., sender_timestamp_ns: _Optional[int] = ..., content_bytes: _Optional[int] = ..., copies: _Optional[int] = ..., repaired_by: _Optional[str] = ..., lost: _Optional[_Iterable[str]] = ..., late: _Optional[bool] = ..., sender_verified: _Optional[bool] = ..., digest: _Optional[bytes] = ...) -> None: ...

class PendingProto(_message.Message):
    __slots__ = ("row",)
    ROW_FIELD_NUMBER: _ClassVar[int]
    row: str
    def __init__(self, row: _Optional[str] = ...) -> None: ...

class BucketProto(_message.Message):
    __slots__ = ("version", "tokens", "settings", "due")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    version: int
    tokens: _containers.RepeatedScalarFieldContainer[bytes]
    settings: _containers.RepeatedScalarFieldContainer[bytes]
    due: _containers.RepeatedCompositeFieldContainer[DuePlaceProto]
    def __init__(self, version: _Optional[int] = ..., tokens: _Optional[_Iterable[bytes]] = ..., settings: _Optional[_Iterable[bytes]] = ..., due: _Optional[_Iterable[_Union[DuePlaceProto, _Mapping]]] = ...) -> None: ...

class DuePlaceProto(_message.Message):
    __slots__ = ("kafka_topic", "kafka_partition", "slots")
    KAFKA_TOPIC_FIELD_NUMBER: _ClassVar[int]
    KAFKA_PARTITION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    kafka_topic: str
    kafka_partition: int
    slots: _containers.RepeatedCompositeFieldContainer[DueSlotProto]
    def __init__(self, kafka_topic: _Optional[str] = ..., kafka_partition: _Optional[int] = ..., slots: _Optional[_Iterable[_Union[DueSlotProto, _Mapping]]] = ...) -> None: ...

class DueSlotProto(_message.Message):
    __slots__ = ("number", "least_us", "pages")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEAST_US_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    number: int
    least_us: int
    pages: int
    def __init__(self, number: _Optional[int] = ..., least_us: _Optional[int] = ..., pages: _Optional[int] = ...) -> None: ...

class DuePageProto(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[DueChannelProto]
    def __init__(self, channels: _Optional[_Iterable[_Union[DueChannelProto, _Mapping]]] = ...) -> None: ...

class DueChannelProto(_message.Message):
    __slots__ = ("key", "due_us", "is_end")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    IS_END_FIELD_NUMBER: _ClassVar[int]
    key: _containers.RepeatedScalarFieldContainer[str]
    due_us: int
    is_end: bool
    def __init__(self, key: _Optional[_Iterable[str]] = ..., due_us: _Optional[int] = ..., is_end: _Optional[bool] = ...) -> None: ...

class ChannelSnapshotProto(_message.Message):
    __slots__ = ("page", "state", "size")
    PAGE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    page: int
    state: bytes
    size: int
    def __init__(self, page: _Optional[int] = ..., state: _Optional[bytes] = ..., size: _Optional[int] = ...) -> None: ...

class JournalPageProto(_message.Message):
    __slots__ = ("settings", "rows", "with_filter", "filters", "full")
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    WITH_FILTER_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    FULL_FIELD_NUMBER: _ClassVar[int]
    settings: bytes
    rows: bytes
    with_filter: _containers.RepeatedScalarFieldContainer[int]
    filters: _containers.RepeatedScalarFieldContainer[bytes]
    full: bool
    def __init__(self, settings: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., with_filter: _Optional[_Iterable[int]] = ..., filters: _Optional[_Iterable[bytes]] = ..., full: _Optional[bool] = ...) -> None: ...
