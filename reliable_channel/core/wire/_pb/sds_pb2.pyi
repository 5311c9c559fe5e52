from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class HistoryEntry(_message.Message):
    __slots__ = ("message_id", "retrieval_hint", "sender_id")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    RETRIEVAL_HINT_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    retrieval_hint: bytes
    sender_id: str
    def __init__(self, message_id: _Optional[str] = ..., retrieval_hint: _Optional[bytes] = ..., sender_id: _Optional[str] = ...) -> None: ...

class SpecMessage(_message.Message):
    __slots__ = ("sender_id", "message_id", "channel_id", "lamport_timestamp", "causal_history", "bloom_filter", "repair_request", "content")
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CAUSAL_HISTORY_FIELD_NUMBER: _ClassVar[int]
    BLOOM_FILTER_FIELD_NUMBER: _ClassVar[int]
    REPAIR_REQUEST_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    sender_id: str
    message_id: str
    channel_id: str
    lamport_timestamp: int
    causal_history: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    bloom_filter: bytes
    repair_request: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    content: bytes
    def __init__(self, sender_id: _Optional[str] = ..., message_id: _Optional[str] = ..., channel_id: _Optional[str] = ..., lamport_timestamp: _Optional[int] = ..., causal_history: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ..., bloom_filter: _Optional[bytes] = ..., repair_request: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ..., content: _Optional[bytes] = ...) -> None: ...

class NimMessage(_message.Message):
    __slots__ = ("message_id", "lamport_timestamp", "causal_history", "channel_id", "content", "bloom_filter", "sender_id", "repair_request")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CAUSAL_HISTORY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BLOOM_FILTER_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    REPAIR_REQUEST_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    lamport_timestamp: int
    causal_history: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    channel_id: str
    content: bytes
    bloom_filter: bytes
    sender_id: str
    repair_request: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    def __init__(self, message_id: _Optional[str] = ..., lamport_timestamp: _Optional[int] = ..., causal_history: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ..., channel_id: _Optional[str] = ..., content: _Optional[bytes] = ..., bloom_filter: _Optional[bytes] = ..., sender_id: _Optional[str] = ..., repair_request: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ...) -> None: ...

class NimIdsMessage(_message.Message):
    __slots__ = ("message_id", "lamport_timestamp", "causal_history", "channel_id", "content", "bloom_filter", "sender_id", "causal_history_entries", "repair_request")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    CAUSAL_HISTORY_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BLOOM_FILTER_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    CAUSAL_HISTORY_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REPAIR_REQUEST_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    lamport_timestamp: int
    causal_history: _containers.RepeatedScalarFieldContainer[str]
    channel_id: str
    content: bytes
    bloom_filter: bytes
    sender_id: str
    causal_history_entries: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    repair_request: _containers.RepeatedCompositeFieldContainer[HistoryEntry]
    def __init__(self, message_id: _Optional[str] = ..., lamport_timestamp: _Optional[int] = ..., causal_history: _Optional[_Iterable[str]] = ..., channel_id: _Optional[str] = ..., content: _Optional[bytes] = ..., bloom_filter: _Optional[bytes] = ..., sender_id: _Optional[str] = ..., causal_history_entries: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ..., repair_request: _Optional[_Iterable[_Union[HistoryEntry, _Mapping]]] = ...) -> None: ...

class NimBloomFilter(_message.Message):
    __slots__ = ("words", "capacity", "error_rate_millionths", "hash_count", "bit_count")
    WORDS_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    ERROR_RATE_MILLIONTHS_FIELD_NUMBER: _ClassVar[int]
    HASH_COUNT_FIELD_NUMBER: _ClassVar[int]
    BIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    words: bytes
    capacity: int
    error_rate_millionths: int
    hash_count: int
    bit_count: int
    def __init__(self, words: _Optional[bytes] = ..., capacity: _Optional[int] = ..., error_rate_millionths: _Optional[int] = ..., hash_count: _Optional[int] = ..., bit_count: _Optional[int] = ...) -> None: ...
