from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JournalEntry(_message.Message):
    __slots__ = ("now", "opened", "send", "received", "dispatched", "failed", "ticked", "closing", "withdrawn")
    NOW_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    TICKED_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    WITHDRAWN_FIELD_NUMBER: _ClassVar[int]
    now: int
    opened: Opened
    send: SendRequested
    received: EnvelopeReceived
    dispatched: DispatchDone
    failed: DispatchFailed
    ticked: Ticked
    closing: Closing
    withdrawn: SyncWithdrawn
    def __init__(self, now: _Optional[int] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., send: _Optional[_Union[SendRequested, _Mapping]] = ..., received: _Optional[_Union[EnvelopeReceived, _Mapping]] = ..., dispatched: _Optional[_Union[DispatchDone, _Mapping]] = ..., failed: _Optional[_Union[DispatchFailed, _Mapping]] = ..., ticked: _Optional[_Union[Ticked, _Mapping]] = ..., closing: _Optional[_Union[Closing, _Mapping]] = ..., withdrawn: _Optional[_Union[SyncWithdrawn, _Mapping]] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Closing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SyncWithdrawn(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SendRequested(_message.Message):
    __slots__ = ("payload", "send_id", "ciphertexts")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SEND_ID_FIELD_NUMBER: _ClassVar[int]
    CIPHERTEXTS_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    send_id: str
    ciphertexts: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, payload: _Optional[bytes] = ..., send_id: _Optional[str] = ..., ciphertexts: _Optional[_Iterable[bytes]] = ...) -> None: ...

class EnvelopeReceived(_message.Message):
    __slots__ = ("data", "retrieval_hint", "content")
    DATA_FIELD_NUMBER: _ClassVar[int]
    RETRIEVAL_HINT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    retrieval_hint: bytes
    content: bytes
    def __init__(self, data: _Optional[bytes] = ..., retrieval_hint: _Optional[bytes] = ..., content: _Optional[bytes] = ...) -> None: ...

class DispatchDone(_message.Message):
    __slots__ = ("sds_id", "message_hash", "own")
    SDS_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    sds_id: str
    message_hash: bytes
    own: bool
    def __init__(self, sds_id: _Optional[str] = ..., message_hash: _Optional[bytes] = ..., own: _Optional[bool] = ...) -> None: ...

class DispatchFailed(_message.Message):
    __slots__ = ("sds_id", "final", "detail")
    SDS_ID_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    sds_id: str
    final: bool
    detail: str
    def __init__(self, sds_id: _Optional[str] = ..., final: _Optional[bool] = ..., detail: _Optional[str] = ...) -> None: ...

class Ticked(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ChannelState(_message.Message):
    __slots__ = ("version", "now", "last_active", "sds", "reassembler", "sends", "pending", "notes", "chunk_gate", "unreported", "evicted")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    LAST_ACTIVE_FIELD_NUMBER: _ClassVar[int]
    SDS_FIELD_NUMBER: _ClassVar[int]
    REASSEMBLER_FIELD_NUMBER: _ClassVar[int]
    SENDS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    NOTES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_GATE_FIELD_NUMBER: _ClassVar[int]
    UNREPORTED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    version: int
    now: int
    last_active: int
    sds: bytes
    reassembler: bytes
    sends: _containers.RepeatedCompositeFieldContainer[SendState]
    pending: _containers.RepeatedCompositeFieldContainer[PendingState]
    notes: _containers.RepeatedCompositeFieldContainer[SegmentNoteState]
    chunk_gate: bytes
    unreported: _containers.RepeatedCompositeFieldContainer[UnreportedEvent]
    evicted: _containers.RepeatedCompositeFieldContainer[EvictedSetState]
    def __init__(self, version: _Optional[int] = ..., now: _Optional[int] = ..., last_active: _Optional[int] = ..., sds: _Optional[bytes] = ..., reassembler: _Optional[bytes] = ..., sends: _Optional[_Iterable[_Union[SendState, _Mapping]]] = ..., pending: _Optional[_Iterable[_Union[PendingState, _Mapping]]] = ..., notes: _Optional[_Iterable[_Union[SegmentNoteState, _Mapping]]] = ..., chunk_gate: _Optional[bytes] = ..., unreported: _Optional[_Iterable[_Union[UnreportedEvent, _Mapping]]] = ..., evicted: _Optional[_Iterable[_Union[EvictedSetState, _Mapping]]] = ...) -> None: ...

class EvictedSetState(_message.Message):
    __slots__ = ("entire_message_hash", "sender_id", "reason", "held", "missing_data", "data_count", "parity_count", "lacking", "buffered_bytes", "first_seen", "last_seen", "mismatch", "since_ms", "due", "stage")
    ENTIRE_MESSAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    MISSING_DATA_FIELD_NUMBER: _ClassVar[int]
    DATA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARITY_COUNT_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    entire_message_hash: bytes
    sender_id: str
    reason: str
    held: _containers.RepeatedCompositeFieldContainer[SegmentState]
    missing_data: _containers.RepeatedScalarFieldContainer[int]
    data_count: int
    parity_count: int
    lacking: int
    buffered_bytes: int
    first_seen: int
    last_seen: int
    mismatch: bool
    since_ms: int
    due: int
    stage: int
    def __init__(self, entire_message_hash: _Optional[bytes] = ..., sender_id: _Optional[str] = ..., reason: _Optional[str] = ..., held: _Optional[_Iterable[_Union[SegmentState, _Mapping]]] = ..., missing_data: _Optional[_Iterable[int]] = ..., data_count: _Optional[int] = ..., parity_count: _Optional[int] = ..., lacking: _Optional[int] = ..., buffered_bytes: _Optional[int] = ..., first_seen: _Optional[int] = ..., last_seen: _Optional[int] = ..., mismatch: _Optional[bool] = ..., since_ms: _Optional[int] = ..., due: _Optional[int] = ..., stage: _Optional[int] = ...) -> None: ...

class SegmentState(_message.Message):
    __slots__ = ("is_parity", "index", "sds_id", "lamport")
    IS_PARITY_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SDS_ID_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_FIELD_NUMBER: _ClassVar[int]
    is_parity: bool
    index: int
    sds_id: str
    lamport: int
    def __init__(self, is_parity: _Optional[bool] = ..., index: _Optional[int] = ..., sds_id: _Optional[str] = ..., lamport: _Optional[int] = ...) -> None: ...

class SendState(_message.Message):
    __slots__ = ("send_id", "payload_hash", "sds_ids", "dispatched", "sent", "delivered", "failed")
    SEND_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    SDS_IDS_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    send_id: str
    payload_hash: str
    sds_ids: _containers.RepeatedScalarFieldContainer[str]
    dispatched: _containers.RepeatedScalarFieldContainer[int]
    sent: bool
    delivered: bool
    failed: bool
    def __init__(self, send_id: _Optional[str] = ..., payload_hash: _Optional[str] = ..., sds_ids: _Optional[_Iterable[str]] = ..., dispatched: _Optional[_Iterable[int]] = ..., sent: _Optional[bool] = ..., delivered: _Optional[bool] = ..., failed: _Optional[bool] = ...) -> None: ...

class PendingState(_message.Message):
    __slots__ = ("key", "sender_id", "payload", "sds_ids", "required", "lamport_timestamp", "request_id")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SDS_IDS_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    key: str
    sender_id: str
    payload: bytes
    sds_ids: _containers.RepeatedScalarFieldContainer[str]
    required: int
    lamport_timestamp: int
    request_id: str
    def __init__(self, key: _Optional[str] = ..., sender_id: _Optional[str] = ..., payload: _Optional[bytes] = ..., sds_ids: _Optional[_Iterable[str]] = ..., required: _Optional[int] = ..., lamport_timestamp: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class SegmentNoteState(_message.Message):
    __slots__ = ("sds_id", "history", "delivered", "late", "lost", "owner")
    SDS_ID_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    sds_id: str
    history: _containers.RepeatedScalarFieldContainer[str]
    delivered: bool
    late: bool
    lost: _containers.RepeatedScalarFieldContainer[str]
    owner: bytes
    def __init__(self, sds_id: _Optional[str] = ..., history: _Optional[_Iterable[str]] = ..., delivered: _Optional[bool] = ..., late: _Optional[bool] = ..., lost: _Optional[_Iterable[str]] = ..., owner: _Optional[bytes] = ...) -> None: ...

class UnreportedEvent(_message.Message):
    __slots__ = ("report_key", "at", "received", "sent", "delivered", "error", "lost", "delivery_error")
    REPORT_KEY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_ERROR_FIELD_NUMBER: _ClassVar[int]
    report_key: str
    at: int
    received: UnreportedMessage
    sent: UnreportedSend
    delivered: UnreportedSend
    error: UnreportedSend
    lost: UnreportedLoss
    delivery_error: UnreportedSend
    def __init__(self, report_key: _Optional[str] = ..., at: _Optional[int] = ..., received: _Optional[_Union[UnreportedMessage, _Mapping]] = ..., sent: _Optional[_Union[UnreportedSend, _Mapping]] = ..., delivered: _Optional[_Union[UnreportedSend, _Mapping]] = ..., error: _Optional[_Union[UnreportedSend, _Mapping]] = ..., lost: _Optional[_Union[UnreportedLoss, _Mapping]] = ..., delivery_error: _Optional[_Union[UnreportedSend, _Mapping]] = ...) -> None: ...

class UnreportedMessage(_message.Message):
    __slots__ = ("payload", "sender_id", "sds_id", "lamport_timestamp", "late", "lost_dependencies", "request_id")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    SDS_ID_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    LOST_DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    sender_id: str
    sds_id: str
    lamport_timestamp: int
    late: bool
    lost_dependencies: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    def __init__(self, payload: _Optional[bytes] = ..., sender_id: _Optional[str] = ..., sds_id: _Optional[str] = ..., lamport_timestamp: _Optional[int] = ..., late: _Optional[bool] = ..., lost_dependencies: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ...) -> None: ...

class UnreportedLoss(_message.Message):
    __slots__ = ("message_id", "sender_id", "reason", "held", "missing", "data_count", "parity_count", "lacking", "held_bytes", "sds_ids", "first_seen", "last_seen")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    DATA_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARITY_COUNT_FIELD_NUMBER: _ClassVar[int]
    LACKING_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SDS_IDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEEN_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    sender_id: str
    reason: str
    held: _containers.RepeatedScalarFieldContainer[int]
    missing: _containers.RepeatedScalarFieldContainer[int]
    data_count: int
    parity_count: int
    lacking: int
    held_bytes: int
    sds_ids: _containers.RepeatedScalarFieldContainer[str]
    first_seen: int
    last_seen: int
    def __init__(self, message_id: _Optional[str] = ..., sender_id: _Optional[str] = ..., reason: _Optional[str] = ..., held: _Optional[_Iterable[int]] = ..., missing: _Optional[_Iterable[int]] = ..., data_count: _Optional[int] = ..., parity_count: _Optional[int] = ..., lacking: _Optional[int] = ..., held_bytes: _Optional[int] = ..., sds_ids: _Optional[_Iterable[str]] = ..., first_seen: _Optional[int] = ..., last_seen: _Optional[int] = ...) -> None: ...

class UnreportedSend(_message.Message):
    __slots__ = ("request_id", "message_id", "after_error", "error", "dispatched")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    DISPATCHED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    message_id: str
    after_error: bool
    error: str
    dispatched: bool
    def __init__(self, request_id: _Optional[str] = ..., message_id: _Optional[str] = ..., after_error: _Optional[bool] = ..., error: _Optional[str] = ..., dispatched: _Optional[bool] = ...) -> None: ...
