"""Describes why bytes from outside are malformed, as a value and never an exception, so that one bad record does not
affect others."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """The fixed list of reasons why bytes are malformed; ``docs/quarantine.md`` explains each."""

    NULL_VALUE = "null_value"
    TOO_LARGE = "too_large"
    MALFORMED_ENVELOPE = "malformed_envelope"
    EMPTY_CONTENT_TOPIC = "empty_content_topic"
    META_TOO_LONG = "meta_too_long"
    BAD_HEADER = "bad_header"
    MALFORMED_SDS = "malformed_sds"
    OTHER_FAMILY = "other_family"
    SDS_WITHOUT_ID = "sds_without_id"
    SDS_WITHOUT_CHANNEL = "sds_without_channel"
    SDS_INVALID_KIND = "sds_invalid_kind"
    SDS_HISTORY_TOO_LONG = "sds_history_too_long"
    SDS_FILTER_SIZE = "sds_filter_size"
    LAMPORT_OUT_OF_RANGE = "lamport_out_of_range"
    MALFORMED_SEGMENT = "malformed_segment"
    SEGMENT_HASH_LENGTH = "segment_hash_length"
    SEGMENT_COUNT = "segment_count"
    SEGMENT_INDEX = "segment_index"
    SEGMENT_HASH_MISMATCH = "segment_hash_mismatch"
    UNDECRYPTABLE = "undecryptable"
    PLAINTEXT_REFUSED = "plaintext_refused"
    OVER_QUOTA = "over_quota"


@dataclass(frozen=True, slots=True)
class Malformed:
    """The result for malformed bytes: a reason from the fixed list and a short detail that never contains payload
    bytes."""

    reason: Reason
    detail: str = ""
