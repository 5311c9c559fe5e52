from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SdsState(_message.Message):
    __slots__ = ("version", "channel_id", "participant_id", "clock", "observed_since", "far", "sequence", "ephemeral_counter", "last_own_id", "log_lamports", "log_ids", "log_entries", "horizon_lamport", "horizon_id", "log_senders", "log_sender_ids", "log_sizes", "horizons", "filter_words", "filter_count", "waiting", "missing", "lost", "before_observation", "lost_owners", "before_observation_owners", "evicted", "evicted_owners", "unproven", "syncs", "sync_senders", "participants", "tracked_ids", "tracked_senders", "tracked_lamports", "tracked_since", "tracked_acked", "tracked_certain", "tracked_hits", "tracked_implied", "tracked_reached", "participants_heard", "participant_messages", "participant_last", "participants_proving", "repeats", "repeats_horizon", "repeats_horizon_id", "repeats_horizons", "sends", "finished_sends", "sync_due", "sync_counter", "sync_waiting_since", "repair_requests", "repair_responses", "kept", "repair_answers_since", "repair_answers", "sync_owed_due", "sync_owed_ids", "sync_owed_senders", "sync_unsent", "sync_unsent_ids", "sync_unsent_senders", "texts")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_ID_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_ID_FIELD_NUMBER: _ClassVar[int]
    CLOCK_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_SINCE_FIELD_NUMBER: _ClassVar[int]
    FAR_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPHEMERAL_COUNTER_FIELD_NUMBER: _ClassVar[int]
    LAST_OWN_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_LAMPORTS_FIELD_NUMBER: _ClassVar[int]
    LOG_IDS_FIELD_NUMBER: _ClassVar[int]
    LOG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    HORIZON_LAMPORT_FIELD_NUMBER: _ClassVar[int]
    HORIZON_ID_FIELD_NUMBER: _ClassVar[int]
    LOG_SENDERS_FIELD_NUMBER: _ClassVar[int]
    LOG_SENDER_IDS_FIELD_NUMBER: _ClassVar[int]
    LOG_SIZES_FIELD_NUMBER: _ClassVar[int]
    HORIZONS_FIELD_NUMBER: _ClassVar[int]
    FILTER_WORDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_COUNT_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    MISSING_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    LOST_OWNERS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OBSERVATION_OWNERS_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_OWNERS_FIELD_NUMBER: _ClassVar[int]
    UNPROVEN_FIELD_NUMBER: _ClassVar[int]
    SYNCS_FIELD_NUMBER: _ClassVar[int]
    SYNC_SENDERS_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_FIELD_NUMBER: _ClassVar[int]
    TRACKED_IDS_FIELD_NUMBER: _ClassVar[int]
    TRACKED_SENDERS_FIELD_NUMBER: _ClassVar[int]
    TRACKED_LAMPORTS_FIELD_NUMBER: _ClassVar[int]
    TRACKED_SINCE_FIELD_NUMBER: _ClassVar[int]
    TRACKED_ACKED_FIELD_NUMBER: _ClassVar[int]
    TRACKED_CERTAIN_FIELD_NUMBER: _ClassVar[int]
    TRACKED_HITS_FIELD_NUMBER: _ClassVar[int]
    TRACKED_IMPLIED_FIELD_NUMBER: _ClassVar[int]
    TRACKED_REACHED_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_HEARD_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANT_LAST_FIELD_NUMBER: _ClassVar[int]
    PARTICIPANTS_PROVING_FIELD_NUMBER: _ClassVar[int]
    REPEATS_FIELD_NUMBER: _ClassVar[int]
    REPEATS_HORIZON_FIELD_NUMBER: _ClassVar[int]
    REPEATS_HORIZON_ID_FIELD_NUMBER: _ClassVar[int]
    REPEATS_HORIZONS_FIELD_NUMBER: _ClassVar[int]
    SENDS_FIELD_NUMBER: _ClassVar[int]
    FINISHED_SENDS_FIELD_NUMBER: _ClassVar[int]
    SYNC_DUE_FIELD_NUMBER: _ClassVar[int]
    SYNC_COUNTER_FIELD_NUMBER: _ClassVar[int]
    SYNC_WAITING_SINCE_FIELD_NUMBER: _ClassVar[int]
    REPAIR_REQUESTS_FIELD_NUMBER: _ClassVar[int]
    REPAIR_RESPONSES_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    REPAIR_ANSWERS_SINCE_FIELD_NUMBER: _ClassVar[int]
    REPAIR_ANSWERS_FIELD_NUMBER: _ClassVar[int]
    SYNC_OWED_DUE_FIELD_NUMBER: _ClassVar[int]
    SYNC_OWED_IDS_FIELD_NUMBER: _ClassVar[int]
    SYNC_OWED_SENDERS_FIELD_NUMBER: _ClassVar[int]
    SYNC_UNSENT_FIELD_NUMBER: _ClassVar[int]
    SYNC_UNSENT_IDS_FIELD_NUMBER: _ClassVar[int]
    SYNC_UNSENT_SENDERS_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    channel_id: str
    participant_id: str
    clock: int
    observed_since: int
    far: _containers.RepeatedScalarFieldContainer[int]
    sequence: int
    ephemeral_counter: int
    last_own_id: str
    log_lamports: _containers.RepeatedScalarFieldContainer[int]
    log_ids: _containers.RepeatedScalarFieldContainer[str]
    log_entries: _containers.RepeatedScalarFieldContainer[bytes]
    horizon_lamport: int
    horizon_id: str
    log_senders: _containers.RepeatedScalarFieldContainer[int]
    log_sender_ids: _containers.RepeatedScalarFieldContainer[str]
    log_sizes: _containers.RepeatedScalarFieldContainer[int]
    horizons: _containers.RepeatedCompositeFieldContainer[Horizon]
    filter_words: bytes
    filter_count: int
    waiting: _containers.RepeatedCompositeFieldContainer[Waiting]
    missing: _containers.RepeatedCompositeFieldContainer[Missing]
    lost: _containers.RepeatedScalarFieldContainer[str]
    before_observation: _containers.RepeatedScalarFieldContainer[str]
    lost_owners: _containers.RepeatedScalarFieldContainer[int]
    before_observation_owners: _containers.RepeatedScalarFieldContainer[int]
    evicted: _containers.RepeatedScalarFieldContainer[str]
    evicted_owners: _containers.RepeatedScalarFieldContainer[int]
    unproven: _containers.RepeatedCompositeFieldContainer[Unproven]
    syncs: _containers.RepeatedScalarFieldContainer[str]
    sync_senders: _containers.RepeatedScalarFieldContainer[str]
    participants: _containers.RepeatedScalarFieldContainer[str]
    tracked_ids: _containers.RepeatedScalarFieldContainer[str]
    tracked_senders: _containers.RepeatedScalarFieldContainer[str]
    tracked_lamports: _containers.RepeatedScalarFieldContainer[int]
    tracked_since: _containers.RepeatedScalarFieldContainer[int]
    tracked_acked: _containers.RepeatedScalarFieldContainer[bytes]
    tracked_certain: _containers.RepeatedScalarFieldContainer[bytes]
    tracked_hits: _containers.RepeatedCompositeFieldContainer[TrackedHit]
    tracked_implied: _containers.RepeatedScalarFieldContainer[bytes]
    tracked_reached: _containers.RepeatedScalarFieldContainer[bytes]
    participants_heard: _containers.RepeatedCompositeFieldContainer[Heard]
    participant_messages: _containers.RepeatedScalarFieldContainer[int]
    participant_last: _containers.RepeatedScalarFieldContainer[int]
    participants_proving: bytes
    repeats: _containers.RepeatedCompositeFieldContainer[Repeat]
    repeats_horizon: int
    repeats_horizon_id: str
    repeats_horizons: _containers.RepeatedCompositeFieldContainer[Horizon]
    sends: _containers.RepeatedCompositeFieldContainer[Send]
    finished_sends: _containers.RepeatedScalarFieldContainer[str]
    sync_due: int
    sync_counter: int
    sync_waiting_since: int
    repair_requests: _containers.RepeatedCompositeFieldContainer[Timer]
    repair_responses: _containers.RepeatedCompositeFieldContainer[Timer]
    kept: _containers.RepeatedCompositeFieldContainer[Kept]
    repair_answers_since: int
    repair_answers: _containers.RepeatedCompositeFieldContainer[Answers]
    sync_owed_due: int
    sync_owed_ids: _containers.RepeatedScalarFieldContainer[str]
    sync_owed_senders: _containers.RepeatedScalarFieldContainer[str]
    sync_unsent: str
    sync_unsent_ids: _containers.RepeatedScalarFieldContainer[str]
    sync_unsent_senders: _containers.RepeatedScalarFieldContainer[str]
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, version: _Optional[int] = ..., channel_id: _Optional[str] = ..., participant_id: _Optional[str] = ..., clock: _Optional[int] = ..., observed_since: _Optional[int] = ..., far: _Optional[_Iterable[int]] = ..., sequence: _Optional[int] = ..., ephemeral_counter: _Optional[int] = ..., last_own_id: _Optional[str] = ..., log_lamports: _Optional[_Iterable[int]] = ..., log_ids: _Optional[_Iterable[str]] = ..., log_entries: _Optional[_Iterable[bytes]] = ..., horizon_lamport: _Optional[int] = ..., horizon_id: _Optional[str] = ..., log_senders: _Optional[_Iterable[int]] = ..., log_sender_ids: _Optional[_Iterable[str]] = ..., log_sizes: _Optional[_Iterable[int]] = ..., horizons: _Optional[_Iterable[_Union[Horizon, _Mapping]]] = ..., filter_words: _Optional[bytes] = ..., filter_count: _Optional[int] = ..., waiting: _Optional[_Iterable[_Union[Waiting, _Mapping]]] = ..., missing: _Optional[_Iterable[_Union[Missing, _Mapping]]] = ..., lost: _Optional[_Iterable[str]] = ..., before_observation: _Optional[_Iterable[str]] = ..., lost_owners: _Optional[_Iterable[int]] = ..., before_observation_owners: _Optional[_Iterable[int]] = ..., evicted: _Optional[_Iterable[str]] = ..., evicted_owners: _Optional[_Iterable[int]] = ..., unproven: _Optional[_Iterable[_Union[Unproven, _Mapping]]] = ..., syncs: _Optional[_Iterable[str]] = ..., sync_senders: _Optional[_Iterable[str]] = ..., participants: _Optional[_Iterable[str]] = ..., tracked_ids: _Optional[_Iterable[str]] = ..., tracked_senders: _Optional[_Iterable[str]] = ..., tracked_lamports: _Optional[_Iterable[int]] = ..., tracked_since: _Optional[_Iterable[int]] = ..., tracked_acked: _Optional[_Iterable[bytes]] = ..., tracked_certain: _Optional[_Iterable[bytes]] = ..., tracked_hits: _Optional[_Iterable[_Union[TrackedHit, _Mapping]]] = ..., tracked_implied: _Optional[_Iterable[bytes]] = ..., tracked_reached: _Optional[_Iterable[bytes]] = ..., participants_heard: _Optional[_Iterable[_Union[Heard, _Mapping]]] = ..., participant_messages: _Optional[_Iterable[int]] = ..., participant_last: _Optional[_Iterable[int]] = ..., participants_proving: _Optional[bytes] = ..., repeats: _Optional[_Iterable[_Union[Repeat, _Mapping]]] = ..., repeats_horizon: _Optional[int] = ..., repeats_horizon_id: _Optional[str] = ..., repeats_horizons: _Optional[_Iterable[_Union[Horizon, _Mapping]]] = ..., sends: _Optional[_Iterable[_Union[Send, _Mapping]]] = ..., finished_sends: _Optional[_Iterable[str]] = ..., sync_due: _Optional[int] = ..., sync_counter: _Optional[int] = ..., sync_waiting_since: _Optional[int] = ..., repair_requests: _Optional[_Iterable[_Union[Timer, _Mapping]]] = ..., repair_responses: _Optional[_Iterable[_Union[Timer, _Mapping]]] = ..., kept: _Optional[_Iterable[_Union[Kept, _Mapping]]] = ..., repair_answers_since: _Optional[int] = ..., repair_answers: _Optional[_Iterable[_Union[Answers, _Mapping]]] = ..., sync_owed_due: _Optional[int] = ..., sync_owed_ids: _Optional[_Iterable[str]] = ..., sync_owed_senders: _Optional[_Iterable[str]] = ..., sync_unsent: _Optional[str] = ..., sync_unsent_ids: _Optional[_Iterable[str]] = ..., sync_unsent_senders: _Optional[_Iterable[str]] = ..., texts: _Optional[_Iterable[str]] = ...) -> None: ...

class LogEntry(_message.Message):
    __slots__ = ("sender_id", "history", "digest", "hint", "past", "verified", "won")
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    WON_FIELD_NUMBER: _ClassVar[int]
    sender_id: str
    history: _containers.RepeatedScalarFieldContainer[str]
    digest: bytes
    hint: bytes
    past: bytes
    verified: bool
    won: bool
    def __init__(self, sender_id: _Optional[str] = ..., history: _Optional[_Iterable[str]] = ..., digest: _Optional[bytes] = ..., hint: _Optional[bytes] = ..., past: _Optional[bytes] = ..., verified: _Optional[bool] = ..., won: _Optional[bool] = ...) -> None: ...

class Horizon(_message.Message):
    __slots__ = ("sender_id", "lamport", "message_id")
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    sender_id: str
    lamport: int
    message_id: str
    def __init__(self, sender_id: _Optional[str] = ..., lamport: _Optional[int] = ..., message_id: _Optional[str] = ...) -> None: ...

class Waiting(_message.Message):
    __slots__ = ("message_id", "sender_id", "lamport", "history", "digest", "hint", "past", "content", "received_at", "unmet", "lost", "before_observation", "repaired", "replaces", "late", "size", "verified", "won", "repeat_of", "unproven_for")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    PAST_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_AT_FIELD_NUMBER: _ClassVar[int]
    UNMET_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    BEFORE_OBSERVATION_FIELD_NUMBER: _ClassVar[int]
    REPAIRED_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    WON_FIELD_NUMBER: _ClassVar[int]
    REPEAT_OF_FIELD_NUMBER: _ClassVar[int]
    UNPROVEN_FOR_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    sender_id: str
    lamport: int
    history: _containers.RepeatedScalarFieldContainer[str]
    digest: bytes
    hint: bytes
    past: bytes
    content: bytes
    received_at: int
    unmet: _containers.RepeatedScalarFieldContainer[str]
    lost: _containers.RepeatedScalarFieldContainer[str]
    before_observation: _containers.RepeatedScalarFieldContainer[str]
    repaired: bool
    replaces: bool
    late: bool
    size: int
    verified: bool
    won: bool
    repeat_of: str
    unproven_for: str
    def __init__(self, message_id: _Optional[str] = ..., sender_id: _Optional[str] = ..., lamport: _Optional[int] = ..., history: _Optional[_Iterable[str]] = ..., digest: _Optional[bytes] = ..., hint: _Optional[bytes] = ..., past: _Optional[bytes] = ..., content: _Optional[bytes] = ..., received_at: _Optional[int] = ..., unmet: _Optional[_Iterable[str]] = ..., lost: _Optional[_Iterable[str]] = ..., before_observation: _Optional[_Iterable[str]] = ..., repaired: _Optional[bool] = ..., replaces: _Optional[bool] = ..., late: _Optional[bool] = ..., size: _Optional[int] = ..., verified: _Optional[bool] = ..., won: _Optional[bool] = ..., repeat_of: _Optional[str] = ..., unproven_for: _Optional[str] = ...) -> None: ...

class Unproven(_message.Message):
    __slots__ = ("message_id", "since", "until", "lamport", "entry", "refuted", "waits")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    REFUTED_FIELD_NUMBER: _ClassVar[int]
    WAITS_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    since: int
    until: int
    lamport: int
    entry: bytes
    refuted: bool
    waits: bool
    def __init__(self, message_id: _Optional[str] = ..., since: _Optional[int] = ..., until: _Optional[int] = ..., lamport: _Optional[int] = ..., entry: _Optional[bytes] = ..., refuted: _Optional[bool] = ..., waits: _Optional[bool] = ...) -> None: ...

class Missing(_message.Message):
    __slots__ = ("message_id", "hint", "since", "refetches", "due", "lost_at", "reached", "others", "charged_to", "sender")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    REFETCHES_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    LOST_AT_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    CHARGED_TO_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    hint: bytes
    since: int
    refetches: int
    due: int
    lost_at: int
    reached: _containers.RepeatedCompositeFieldContainer[Reached]
    others: _containers.RepeatedCompositeFieldContainer[Naming]
    charged_to: int
    sender: int
    def __init__(self, message_id: _Optional[str] = ..., hint: _Optional[bytes] = ..., since: _Optional[int] = ..., refetches: _Optional[int] = ..., due: _Optional[int] = ..., lost_at: _Optional[int] = ..., reached: _Optional[_Iterable[_Union[Reached, _Mapping]]] = ..., others: _Optional[_Iterable[_Union[Naming, _Mapping]]] = ..., charged_to: _Optional[int] = ..., sender: _Optional[int] = ...) -> None: ...

class Naming(_message.Message):
    __slots__ = ("hint", "sender")
    HINT_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    hint: bytes
    sender: int
    def __init__(self, hint: _Optional[bytes] = ..., sender: _Optional[int] = ...) -> None: ...

class Reached(_message.Message):
    __slots__ = ("directly", "by_text", "via_text")
    DIRECTLY_FIELD_NUMBER: _ClassVar[int]
    BY_TEXT_FIELD_NUMBER: _ClassVar[int]
    VIA_TEXT_FIELD_NUMBER: _ClassVar[int]
    directly: bool
    by_text: int
    via_text: int
    def __init__(self, directly: _Optional[bool] = ..., by_text: _Optional[int] = ..., via_text: _Optional[int] = ...) -> None: ...

class TrackedHit(_message.Message):
    __slots__ = ("row", "by", "via_text")
    ROW_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    VIA_TEXT_FIELD_NUMBER: _ClassVar[int]
    row: int
    by: int
    via_text: int
    def __init__(self, row: _Optional[int] = ..., by: _Optional[int] = ..., via_text: _Optional[int] = ...) -> None: ...

class Send(_message.Message):
    __slots__ = ("send_id", "required", "segments", "delivered", "failed", "complete_for")
    SEND_ID_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FOR_FIELD_NUMBER: _ClassVar[int]
    send_id: str
    required: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    delivered: bool
    failed: bool
    complete_for: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, send_id: _Optional[str] = ..., required: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., delivered: _Optional[bool] = ..., failed: _Optional[bool] = ..., complete_for: _Optional[_Iterable[str]] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("message_id", "data", "attempts", "wait", "due", "state", "queued_at")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    QUEUED_AT_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    data: bytes
    attempts: int
    wait: int
    due: int
    state: int
    queued_at: int
    def __init__(self, message_id: _Optional[str] = ..., data: _Optional[bytes] = ..., attempts: _Optional[int] = ..., wait: _Optional[int] = ..., due: _Optional[int] = ..., state: _Optional[int] = ..., queued_at: _Optional[int] = ...) -> None: ...

class Repeat(_message.Message):
    __slots__ = ("lamport", "message_id", "sender_id")
    LAMPORT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    lamport: int
    message_id: str
    sender_id: str
    def __init__(self, lamport: _Optional[int] = ..., message_id: _Optional[str] = ..., sender_id: _Optional[str] = ...) -> None: ...

class Heard(_message.Message):
    __slots__ = ("by", "lamport")
    BY_FIELD_NUMBER: _ClassVar[int]
    LAMPORT_FIELD_NUMBER: _ClassVar[int]
    by: int
    lamport: int
    def __init__(self, by: _Optional[int] = ..., lamport: _Optional[int] = ...) -> None: ...

class Timer(_message.Message):
    __slots__ = ("message_id", "due", "sender_id")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DUE_FIELD_NUMBER: _ClassVar[int]
    SENDER_ID_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    due: int
    sender_id: str
    def __init__(self, message_id: _Optional[str] = ..., due: _Optional[int] = ..., sender_id: _Optional[str] = ...) -> None: ...

class Answers(_message.Message):
    __slots__ = ("by", "count")
    BY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    by: str
    count: int
    def __init__(self, by: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Kept(_message.Message):
    __slots__ = ("message_id", "data", "size", "own")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    OWN_FIELD_NUMBER: _ClassVar[int]
    message_id: str
    data: bytes
    size: int
    own: bool
    def __init__(self, message_id: _Optional[str] = ..., data: _Optional[bytes] = ..., size: _Optional[int] = ..., own: _Optional[bool] = ...) -> None: ...
