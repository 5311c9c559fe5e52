from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class SegmentMessageProto(_message.Message):
    __slots__ = ("entire_message_hash", "index", "segments_count", "payload", "parity_segment_index", "parity_segments_count", "is_parity_or_length")
    ENTIRE_MESSAGE_HASH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PARITY_SEGMENT_INDEX_FIELD_NUMBER: _ClassVar[int]
    PARITY_SEGMENTS_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_PARITY_OR_LENGTH_FIELD_NUMBER: _ClassVar[int]
    entire_message_hash: bytes
    index: int
    segments_count: int
    payload: bytes
    parity_segment_index: int
    parity_segments_count: int
    is_parity_or_length: int
    def __init__(self, entire_message_hash: _Optional[bytes] = ..., index: _Optional[int] = ..., segments_count: _Optional[int] = ..., payload: _Optional[bytes] = ..., parity_segment_index: _Optional[int] = ..., parity_segments_count: _Optional[int] = ..., is_parity_or_length: _Optional[int] = ...) -> None: ...

class LengthSegmentProto(_message.Message):
    __slots__ = ("original_payload_hash", "original_payload_length", "index", "data_segment_count", "parity_segment_count", "is_parity", "segment_payload")
    ORIGINAL_PAYLOAD_HASH_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_PAYLOAD_LENGTH_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_SEGMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARITY_SEGMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    IS_PARITY_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    original_payload_hash: bytes
    original_payload_length: int
    index: int
    data_segment_count: int
    parity_segment_count: int
    is_parity: bool
    segment_payload: bytes
    def __init__(self, original_payload_hash: _Optional[bytes] = ..., original_payload_length: _Optional[int] = ..., index: _Optional[int] = ..., data_segment_count: _Optional[int] = ..., parity_segment_count: _Optional[int] = ..., is_parity: _Optional[bool] = ..., segment_payload: _Optional[bytes] = ...) -> None: ...
