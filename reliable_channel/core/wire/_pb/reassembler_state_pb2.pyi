from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReassemblerState(_message.Message):
    __slots__ = ("version", "now", "open", "completed", "next_send", "next_number", "spared_until")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    NEXT_SEND_FIELD_NUMBER: _ClassVar[int]
    NEXT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    SPARED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    version: int
    now: int
    open: _containers.RepeatedCompositeFieldContainer[OpenSetState]
    completed: _containers.RepeatedCompositeFieldContainer[CompletedSetState]
    next_send: _containers.RepeatedCompositeFieldContainer[NextSend]
    next_number: int
    spared_until: int
    def __init__(self, version: _Optional[int] = ..., now: _Optional[int] = ..., open: _Optional[_Iterable[_Union[OpenSetState, _Mapping]]] = ..., completed: _Optional[_Iterable[_Union[CompletedSetState, _Mapping]]] = ..., next_send: _Optional[_Iterable[_Union[NextSend, _Mapping]]] = ..., next_number: _Optional[int] = ..., spared_until: _Optional[int] = ...) -> None: ...

class NextSend(_message.Message):
    __slots__ = ("scope", "entire_message_hash", "send")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    ENTIRE_MESSAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    scope: _containers.RepeatedScalarFieldContainer[str]
    entire_message_hash: bytes
    send: int
    def __init__(self, scope: _Optional[_Iterable[str]] = ..., entire_message_hash: _Optional[bytes] = ..., send: _Optional[int] = ...) -> None: ...

class OpenSetState(_message.Message):
    __slots__ = ("scope", "entire_message_hash", "send", "dialect", "codec", "data_count", "parity_count", "original_length", "first_seen", "last_seen", "shards", "conflicts", "attempts", "mismatch", "tried", "lengths_key", "lengths_tried", "credit", "unfinished", "search_due", "asks", "parked_bytes", "ask_due")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    ENTIRE_MESSAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    DATA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARITY_COUNT_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_LENGTH_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    CONFLICTS_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_FIELD_NUMBER: _ClassVar[int]
    TRIED_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_KEY_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_TRIED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    SEARCH_DUE_FIELD_NUMBER: _ClassVar[int]
    ASKS_FIELD_NUMBER: _ClassVar[int]
    PARKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ASK_DUE_FIELD_NUMBER: _ClassVar[int]
    scope: _containers.RepeatedScalarFieldContainer[str]
    entire_message_hash: bytes
    send: int
    dialect: str
    codec: str
    data_count: int
    parity_count: int
    original_length: int
    first_seen: int
    last_seen: int
    shards: _containers.RepeatedCompositeFieldContainer[ShardState]
    conflicts: _containers.RepeatedCompositeFieldContainer[ShardState]
    attempts: int
    mismatch: bool
    tried: _containers.RepeatedScalarFieldContainer[int]
    lengths_key: int
    lengths_tried: int
    credit: int
    unfinished: bool
    search_due: int
    asks: int
    parked_bytes: int
    ask_due: int
    def __init__(self, scope: _Optional[_Iterable[str]] = ..., entire_message_hash: _Optional[bytes] = ..., send: _Optional[int] = ..., dialect: _Optional[str] = ..., codec: _Optional[str] = ..., data_count: _Optional[int] = ..., parity_count: _Optional[int] = ..., original_length: _Optional[int] = ..., first_seen: _Optional[int] = ..., last_seen: _Optional[int] = ..., shards: _Optional[_Iterable[_Union[ShardState, _Mapping]]] = ..., conflicts: _Optional[_Iterable[_Union[ShardState, _Mapping]]] = ..., attempts: _Optional[int] = ..., mismatch: _Optional[bool] = ..., tried: _Optional[_Iterable[int]] = ..., lengths_key: _Optional[int] = ..., lengths_tried: _Optional[int] = ..., credit: _Optional[int] = ..., unfinished: _Optional[bool] = ..., search_due: _Optional[int] = ..., asks: _Optional[int] = ..., parked_bytes: _Optional[int] = ..., ask_due: _Optional[int] = ...) -> None: ...

class ShardState(_message.Message):
    __slots__ = ("slot", "sds_id", "lamport", "payload", "number")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SDS_ID_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    slot: int
    sds_id: str
    lamport: int
    payload: bytes
    number: int
    def __init__(self, slot: _Optional[int] = ..., sds_id: _Optional[str] = ..., lamport: _Optional[int] = ..., payload: _Optional[bytes] = ..., number: _Optional[int] = ...) -> None: ...

class CompletedSetState(_message.Message):
    __slots__ = ("scope", "entire_message_hash", "send", "data_count", "parity_count", "origin", "completed_at", "slots", "sds_ids", "strange_slots", "strange_lamports", "lost")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    ENTIRE_MESSAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    DATA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARITY_COUNT_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_AT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SDS_IDS_FIELD_NUMBER: _ClassVar[int]
    STRANGE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    STRANGE_LAMPORTS_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    scope: _containers.RepeatedScalarFieldContainer[str]
    entire_message_hash: bytes
    send: int
    data_count: int
    parity_count: int
    origin: int
    completed_at: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    sds_ids: _containers.RepeatedScalarFieldContainer[str]
    strange_slots: _containers.RepeatedScalarFieldContainer[int]
    strange_lamports: _containers.RepeatedScalarFieldContainer[int]
    lost: bool
    def __init__(self, scope: _Optional[_Iterable[str]] = ..., entire_message_hash: _Optional[bytes] = ..., send: _Optional[int] = ..., data_count: _Optional[int] = ..., parity_count: _Optional[int] = ..., origin: _Optional[int] = ..., completed_at: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., sds_ids: _Optional[_Iterable[str]] = ..., strange_slots: _Optional[_Iterable[int]] = ..., strange_lamports: _Optional[_Iterable[int]] = ..., lost: _Optional[bool] = ...) -> None: ...

class ChunkGateState(_message.Message):
    __slots__ = ("version", "waiting", "verified")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    version: int
    waiting: _containers.RepeatedCompositeFieldContainer[WaitingChunk]
    verified: _containers.RepeatedCompositeFieldContainer[VerifiedChunk]
    def __init__(self, version: _Optional[int] = ..., waiting: _Optional[_Iterable[_Union[WaitingChunk, _Mapping]]] = ..., verified: _Optional[_Iterable[_Union[VerifiedChunk, _Mapping]]] = ...) -> None: ...

class WaitingChunk(_message.Message):
    __slots__ = ("dialect", "entire_message_hash", "index", "data_count", "parity_count", "is_parity", "payload", "original_length", "sds_id", "causal_history", "scope", "lamport", "until")
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    ENTIRE_MESSAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARITY_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_PARITY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_LENGTH_FIELD_NUMBER: _ClassVar[int]
    SDS_ID_FIELD_NUMBER: _ClassVar[int]
    CAUSAL_HISTORY_FIELD_NUMBER: _ClassVar[int]
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    dialect: str
    entire_message_hash: bytes
    index: int
    data_count: int
    parity_count: int
    is_parity: bool
    payload: bytes
    original_length: int
    sds_id: str
    causal_history: _containers.RepeatedScalarFieldContainer[str]
    scope: _containers.RepeatedScalarFieldContainer[str]
    lamport: int
    until: int
    def __init__(self, dialect: _Optional[str] = ..., entire_message_hash: _Optional[bytes] = ..., index: _Optional[int] = ..., data_count: _Optional[int] = ..., parity_count: _Optional[int] = ..., is_parity: _Optional[bool] = ..., payload: _Optional[bytes] = ..., original_length: _Optional[int] = ..., sds_id: _Optional[str] = ..., causal_history: _Optional[_Iterable[str]] = ..., scope: _Optional[_Iterable[str]] = ..., lamport: _Optional[int] = ..., until: _Optional[int] = ...) -> None: ...

class VerifiedChunk(_message.Message):
    __slots__ = ("scope", "entire_message_hash", "slot", "sds_id", "until", "is_last_data")
    SCOPE_FIELD_NUMBER: _ClassVar[int]
    ENTIRE_MESSAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    SDS_ID_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_DATA_FIELD_NUMBER: _ClassVar[int]
    scope: _containers.RepeatedScalarFieldContainer[str]
    entire_message_hash: bytes
    slot: int
    sds_id: str
    until: int
    is_last_data: bool
    def __init__(self, scope: _Optional[_Iterable[str]] = ..., entire_message_hash: _Optional[bytes] = ..., slot: _Optional[int] = ..., sds_id: _Optional[str] = ..., until: _Optional[int] = ..., is_last_data: _Optional[bool] = ...) -> None: ...
