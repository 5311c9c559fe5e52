"""Gathers the evidence for verdicts, in SQL over the tables that Spark and DuckDB (with the macros of
:mod:`reliable_channel.lake.tables.views`) both run.

``FACTS`` is the union of all tables' rows about SDS ids, ``IDS`` aggregates it by id, and ``EVIDENCE`` by message. An
id belongs to the message to which the most certain source assigns it. Aggregates replace joins: a join of all kinds of
evidence took longer to compile than to run. The text of the queries is constant.
"""
# ruff: noqa: S608

from __future__ import annotations

from reliable_channel.core.sds import RefusalReason
from reliable_channel.lake import tables
from reliable_channel.lake.tables import CHANNEL_KEY, LATEST_SEND_TIME, RECORD_KEY, Table
from reliable_channel.lake.tables.evidence import BRIDGE_SOURCES, LOST, NOT_SEEN_SOURCES, UNPROVEN
from reliable_channel.pipeline.lookup import SEARCHED_BYTES, UNDECODED

_CHANNEL = ", ".join(CHANNEL_KEY)
_HAS_CHANNEL = " and ".join(f"{name} is not null" for name in CHANNEL_KEY)

_BY_ID = (*CHANNEL_KEY, "sds_id")
READ: dict[Table, tuple[str, ...]] = {
    tables.DELIVERIES: (
        *(
            *_BY_ID,
            *RECORD_KEY,
            "family",
            "row_kind",
            "segment_kind",
            "sender_id",
            "entire_message_hash",
            "data_count",
            "late",
        ),
        *("first_sds_id", "first_lamport_timestamp", "first_seen", "event_time", "sender_verified"),
    ),
    tables.REASSEMBLED_MESSAGES: (*CHANNEL_KEY, *RECORD_KEY, "sds_ids", "entire_message_hash"),
    tables.INCOMPLETE_MESSAGES: (
        *(*CHANNEL_KEY, "sds_ids", "sender_id", "entire_message_hash", "data_count", "first_seen", "reason"),
        *("data_missing", "event_time", "status"),
    ),
    tables.SENDER_EVENTS: (
        *_BY_ID,
        *("sender_id", "send_id", "entire_message_hash", "event", "envelope_hash", "event_time", "reported_by"),
    ),
    tables.SDS_MESSAGES: (
        *(*_BY_ID, "sds_kind", "segment_kind", "sender_id", "entire_message_hash", "data_count"),
        *("segment_index", "lamport_timestamp", "event_time", "causal_history"),
    ),
    tables.LOST_DEPENDENCIES: (*_BY_ID, "sender_id", "status", "needed_by", "missing_since", "event_time"),
    tables.ACKS: (*_BY_ID, "acknowledged_by", "certainty"),
    tables.REPAIR_REQUESTS: _BY_ID,
    tables.CHANNEL_EVENTS: (*_BY_ID, "event", "detail"),
    tables.STORE_PRESENCE: (*_BY_ID, "message_hash", "outcome", "detail"),
    tables.SIGHTINGS: ("message_hash", "vantage", "source"),
    tables.QUARANTINE: ("message_hash", "reason"),
}
"""The columns of each view that these queries read."""

# Messages of two wire families may be delivered under one id: the one whose id is proven has it, else the first. So
# nobody takes an id by writing it in the other family. In that family, every send of the same payload has it too: where
# ids are hashes of the content (js-waku, LIP-173), equal texts have one id.
_UNIT = (
    "struct<unproven: boolean, since: timestamp, message_key: string, sender_id: string, entire_message_hash: binary,"
    " needed: int, late: boolean, first_seen: timestamp, delivered_at: timestamp, reason: string,"
    " data_missing: array<int>, family: string>"
)
_FACT_TYPES = {
    # The sources that assign the id to a message, the most certain first.
    "delivered": _UNIT,
    "incomplete": _UNIT,
    "belated": _UNIT,
    "recorded": _UNIT,
    "segment": "struct<first_seen: timestamp, sender_id: string, entire_message_hash: binary, bare: boolean,"
    " data_count: int>",
    "named": "struct<first_seen: timestamp, sender_id: string, sent_since: timestamp>",
    # The next segment of the same send.
    "next": "struct<sds_id: string, sender_id: string>",
    # The first segment of the same send.
    "first_id": "string",
    # Other facts about the id.
    "acknowledged_by": "string",
    "lost_by": "string",
    "logged_by": "string",
    "store_error": "string",
    "asked_for": "boolean",
    "refused": "boolean",
    "sent": "boolean",
    "held_back": "boolean",
    "given_up": "boolean",
    "undecryptable": "boolean",
    "present": "boolean",
    "absent": "boolean",
    "before_observation": "boolean",
    "witnessed": "boolean",
}
"""The columns of a row of ``facts`` about an SDS id, with their types; all but one or a few are null."""


def _select_facts(rows: str, sds_id: str = "sds_id", **columns: str) -> str:
    """SQL for rows of ``facts``: ``rows`` follows ``from``, ``columns`` and ``sds_id`` are expressions over it."""
    assert columns.keys() <= _FACT_TYPES.keys()  # noqa: S101  constant text
    every = ", ".join(f"cast({columns.get(name, 'null')} as {kind}) as {name}" for name, kind in _FACT_TYPES.items())
    return f"select {_CHANNEL}, {sds_id} as sds_id, {every} from {rows}"


_DELIVERED = """(select d.*, explode(array_compact(coalesce(m.sds_ids,
        array_repeat(coalesce(d.sds_id, d.first_sds_id), 1)))) as known_id
    from deliveries d left join reassembled_messages m
    on d.segment_kind is null and m.kafka_topic = d.kafka_topic and m.kafka_partition = d.kafka_partition
        and m.kafka_offset = d.kafka_offset and m.entire_message_hash = d.entire_message_hash
    where d.row_kind = 'message')"""

_UNIT_OF_DELIVERED = """(not coalesce(sender_verified, false), first_seen,
    concat_ws('-', lower(hex(entire_message_hash)), coalesce(cast(first_lamport_timestamp as string), first_sds_id)),
    sender_id, entire_message_hash, coalesce(data_count, 1), late, first_seen, event_time, null, null, family)"""

_IN_ORDER = ", ".join(
    # By default, Spark puts nulls first, DuckDB last.
    f"{name} nulls first"
    for name in ("status", "first_seen", "data_count", "reason", "data_missing", "sds_ids")
)
_INCOMPLETE = f"""(select * from (select *, row_number() over (
            partition by {_CHANNEL}, sender_id, entire_message_hash, sds_id
            order by event_time desc nulls last, {_IN_ORDER}) as place
        from (select *, explode(sds_ids) as sds_id from incomplete_messages)) where place = 1)"""
"""The last report of the set that holds an id. A set is reported each time it is overdue, and when it is given up."""

_RECORDED = f"""(select {_CHANNEL}, sds_id, sender_id, entire_message_hash, min(event_time) as first_seen,
        coalesce(min(send_id), sds_id) as first_id
    from sender_events where event <> '{LOST}' and entire_message_hash is not null and {_HAS_CHANNEL}
    group by {_CHANNEL}, sds_id, sender_id, entire_message_hash)"""
"""What senders record, whatever they record of it: a sender that writes only of what it dispatched knows its message as
well. One payload may be sent often, so only the rows themselves can state that two segments are of one send."""

MAX_WITNESSED = 10
"""Ids that one message can witness: the last that it names. Senders name what they have just seen, so a real loss is
soon among the last ten, and a single envelope cannot write the headline."""

SPAN = 256  # as many segments as a send may have (MAX_TOTAL_SEGMENTS), with consecutive Lamport timestamps
_FIRST = f"least(first_lamport_timestamp, {2**63 - 1 - 2 * SPAN})"
"""A foreign writer's row may have any Lamport timestamp, and a sum that overflows ends the query in both engines."""

_SPAN_OF_FIRST = f"{_FIRST} - {_FIRST} % {SPAN}"
_BELATED = f"""(select d.*, s.sds_id as known_id
    from (select *, explode(sequence({_SPAN_OF_FIRST}, {_SPAN_OF_FIRST} + {SPAN}, cast({SPAN} as bigint))) as span
        from deliveries where row_kind = 'message' and segment_kind is null) d
    join (select *, lamport_timestamp - lamport_timestamp % {SPAN} as span
        from sds_messages where sds_kind = 'content' and segment_kind <> 'bare') s
    on d.channel_id = s.channel_id and d.content_topic = s.content_topic and d.pubsub_topic = s.pubsub_topic
        and d.sender_id = s.sender_id and d.entire_message_hash = s.entire_message_hash and d.span = s.span
    where s.lamport_timestamp - {_FIRST} between 0 and {SPAN})"""
"""The segments of a rebuilt message. It does not know the ids of those that arrived after it was complete, unless they
can be recomputed: those of parity cannot, because v0.1 data segments do not state the parity count, and others' ids may
be anything. ``span`` keeps the join small where one payload is sent often."""


def _take_last(count: str) -> str:
    """SQL for the last ``count`` entries of a causal history."""
    return f"slice(causal_history, greatest(size(causal_history) - {count}, 0) + 1, {count})"


_NEIGHBOURS = f"""(select {_CHANNEL}, named.sds_id, next, next_sender
    from (select {_CHANNEL}, sds_id as next, sender_id as next_sender,
            explode({_take_last(f"cast(least(ordinal, {MAX_WITNESSED}) as int)")}) as named
        from (select *, cast(segment_index as bigint)
                + if(segment_kind = 'parity', coalesce(data_count, 2), 0) as ordinal
            from sds_messages where sds_kind = 'content' and segment_kind <> 'bare') where ordinal > 0)
    where coalesce(named.sender_id, next_sender) = next_sender)"""
"""The segments before a segment, by its history: all segments of a send are made in one step, so they are the last
entries."""

_SENDER_RECORDS = """(select * from sender_events left join (
        select message_hash, bool_or(undecryptable) as undecryptable, bool_or(present) as present,
            bool_or(absent) as absent
        from (select message_hash, reason in ('undecryptable', 'plaintext_refused') as undecryptable,
                null as present, null as absent from quarantine
            union all select message_hash, null, outcome = 'present', outcome = 'absent' from store_presence)
        where message_hash is not null group by message_hash) on message_hash = envelope_hash)"""
"""The senders' records, with the outcome of the envelopes that they name."""

_LOGGED = f"""(select * from sender_events join (select distinct message_hash as envelope_hash, vantage
        from sightings where source not in {BRIDGE_SOURCES + NOT_SEEN_SOURCES}) using (envelope_hash))"""
"""The nodes whose logs have an envelope that its sender names, however the send ended."""

_COPIES = f"partition by {_CHANNEL}, sds_id, sender_id"
_WITNESSED = f"""(select {_CHANNEL}, named_id as sds_id
    from (select {_CHANNEL}, sds_id, sender_id, named.sds_id as named_id, bool_or(named.sender_id = sender_id) as own
        from (select *, explode({_take_last(str(MAX_WITNESSED))}) as named
            from (select *, count(*) over ({_COPIES}) as copies,
                    row_number() over ({_COPIES} order by event_time) as copy
                from sds_messages where sds_kind = 'content'))
        group by {_CHANNEL}, sds_id, sender_id, named.sds_id having count(distinct copy) = max(copies))
    semi join (select {_CHANNEL}, sds_id as named_id from lost_dependencies) using ({_CHANNEL}, named_id)
    left join (select distinct {_CHANNEL}, sds_id, true as corroborated
        from (select {_CHANNEL}, sds_id from acks where certainty <> 'probable'
            union all select {_CHANNEL}, sds_id from sender_events)) using ({_CHANNEL}, sds_id)
    group by {_CHANNEL}, named_id
    having bool_or(corroborated) and (count(distinct sender_id) > 1 or bool_or(own and corroborated)))"""
"""The missing ids that two participants name, or their own sender; in all copies of their messages, because a
stranger's copy may have another history. One of these messages is corroborated: another participant acknowledges it, or
its sender's record reports it. The acknowledgement alone is no witness of what the message names: whoever delivers a
message acknowledges it, also with its dependencies given up."""

SENT_SINCE = f"""
    with first_named as (
        select {_CHANNEL}, sds_id,
            min_by(needed_by, (coalesce(missing_since, event_time), needed_by)) as needed_by
        from named_since_gaps group by {_CHANNEL}, sds_id
    ), observed as (
        select {_CHANNEL}, sds_id, min(sender_id) as sender_id, min(lamport_timestamp) as lamport_timestamp,
            min({LATEST_SEND_TIME}) as sent_by, min(list_ids(causal_history)) as history
        from sds_messages join (select distinct {_CHANNEL} from first_named) using ({_CHANNEL})
        where sds_kind = 'content' group by {_CHANNEL}, sds_id
    ), namers as (
        select {_CHANNEL}, missing, history, previous, previous_sent_by,
            cast(array_position(history, missing) as int) as place
        from (select {_CHANNEL}, sds_id as missing, needed_by as sds_id from first_named)
        join (select *, lag(sds_id) over chain as previous, lag(sent_by) over chain as previous_sent_by from observed
            window chain as (partition by {_CHANNEL}, sender_id order by lamport_timestamp, sds_id))
        using ({_CHANNEL}, sds_id)
    ), older as (
        select {_CHANNEL}, missing, previous_sent_by as sent_by from namers
        where place > 0 and not array_contains(history, previous)
        union all
        select {_CHANNEL}, missing, sent_by
        from (select {_CHANNEL}, missing, explode(slice(history, 1, place - 1)) as sds_id from namers where place > 1)
        join observed using ({_CHANNEL}, sds_id)
    )
    select {_CHANNEL}, missing as sds_id, max(sent_by) as sent_since from older group by {_CHANNEL}, missing
"""
"""The time after which a missing message was sent, from its neighbours in Lamport order. The sender of the message that
first names it has a log in that order, and names the end of it. So the missing message is younger than the messages
before it in that history, and than the sender's own previous message if the history omits that. It is older than the
message that names it. Needed only while a gap is open: ``named_since_gaps`` has the lost dependencies that were
missed since the first gap."""

SENT_SINCE_IN_SPARK = SENT_SINCE.replace("list_ids(causal_history)", "causal_history.sds_id")
"""In Spark this is how a field of every struct of a list is read."""

NEWLY_SURROUNDED = f"""
    with namers as (
        select {_CHANNEL}, named.sds_id as missing, lamport_timestamp, causal_history
        from named_since_gaps named join sds_messages using ({_CHANNEL})
        where needed_by = sds_messages.sds_id and sds_kind = 'content' and named.sds_id is not null
    )
    select {_CHANNEL}, missing as sds_id from namers join new_lamport using ({_CHANNEL})
    where least <= lamport_timestamp
    union
    select {_CHANNEL}, missing
    from (select *, explode(list_ids(causal_history)) as new_id from namers) join new_ids using (new_id)
"""
"""The missing messages whose time of sending new messages can narrow down (``SENT_SINCE``). They are named by a message
that is not older in Lamport order than the first new one of the channel, or that has a new one in its history.
``new_lamport``: the lowest new Lamport timestamp by channel; ``new_ids``: the new SDS ids."""

_PROVEN = f"outcome = 'present' and detail is distinct from '{UNPROVEN}'"
"""An encrypted envelope found by a hint may contain any message, so it proves nothing about the missing one."""

NO_SENT_SINCE = f"select {_CHANNEL}, sds_id, event_time as sent_since from lost_dependencies where false"

_REFUSED = " and ".join(
    (
        "event = 'refused'",
        *(f"detail not like '{part}%'" for part in (RefusalReason.FILTER_SIZE, RefusalReason.NOT_CAUSAL)),
    )
)
"""Of these two reasons, only the filter or a dependency is refused, not the message."""

FACTS = "\nunion all ".join(
    (
        _select_facts(_DELIVERED, "known_id", delivered=_UNIT_OF_DELIVERED),
        _select_facts(_BELATED, "known_id", belated=_UNIT_OF_DELIVERED),
        _select_facts(
            _INCOMPLETE,
            incomplete="""(null, null, concat_ws('-', lower(hex(entire_message_hash)), array_min(sds_ids)),
                sender_id, entire_message_hash, data_count, false, first_seen, null, reason, data_missing, null)""",
        ),
        _select_facts(
            _RECORDED,
            recorded="""(null, null, concat_ws('-', lower(hex(entire_message_hash)), first_id), sender_id,
                entire_message_hash, null, false, first_seen, null, null, null, null)""",
            first_id="first_id",
        ),
        _select_facts(
            "sds_messages where sds_kind = 'content'",
            segment="(event_time, sender_id, entire_message_hash, segment_kind = 'bare', data_count)",
        ),
        _select_facts(_NEIGHBOURS, next="(next, next_sender)"),
        _select_facts(
            f"(select * from lost_dependencies left join sent using ({_CHANNEL}, sds_id))",
            named="(coalesce(missing_since, event_time), sender_id, sent_since)",
            before_observation="status = 'before_observation'",
        ),
        _select_facts(_WITNESSED, witnessed="true"),
        _select_facts("acks", acknowledged_by="acknowledged_by"),
        _select_facts("repair_requests", asked_for="true"),
        _select_facts(f"channel_events where {_REFUSED}", refused="true"),
        _select_facts(
            _SENDER_RECORDS,
            sent="event in ('sent', 'resent', 'not_stored')",
            held_back="event = 'rate_limited'",
            given_up="event in ('failed', 'dropped')",
            lost_by=f"if(event = '{LOST}', reported_by, null)",
            undecryptable="undecryptable",
            present="present",
            absent="absent",
        ),
        _select_facts(_LOGGED, sent="true", logged_by="vantage"),
        _select_facts(
            "store_presence",
            present=_PROVEN,
            absent="outcome = 'absent'",
            store_error=f"if(outcome = 'error' or detail = '{UNPROVEN}', detail, null)",
        ),
    )
)

_CLAIMS = ("delivered", "incomplete", "belated", "recorded", "segment", "named", "next", "first_id")
_FACTS = (
    "asked_for",
    "refused",
    "sent",
    "held_back",
    "given_up",
    "undecryptable",
    "present",
    "absent",
    "before_observation",
    "witnessed",
)

# ``min`` of structs compares their fields in order: a proven delivery comes before an unproven one, then the earliest.
IDS = f"""
    select {_CHANNEL}, sds_id, {", ".join(f"min({name}) as {name}" for name in _CLAIMS)},
        collect_set(delivered) as sends,
        collect_set(acknowledged_by) as acknowledged_by, collect_set(lost_by) as lost_by,
        collect_set(logged_by) as logged_by, max(store_error) as store_error,
        {", ".join(f"bool_or({name}) as {name}" for name in _FACTS)}
    from facts where sds_id is not null group by {_CHANNEL}, sds_id
"""

SUSPECTS = f"""select stage, substring(raw, 1, {SEARCHED_BYTES}) as raw from quarantine
    where raw is not null and stage in {UNDECODED}"""
"""Records that could not be decoded; ``suspected`` has the SDS ids that they seem to contain as their own."""

EVIDENCE = f"""
    with known as (
        select *, suspected is not null as undecodable,
            explode(if(delivered is null, array_repeat(if(incomplete is null, belated, null), 1), sends)) as own,
            coalesce(delivered, incomplete, belated, recorded) is null and segment is null and named is not null
                and coalesce(named.sender_id, next.sender_id) = next.sender_id as is_lost_segment
        from ids left join (select sds_id as suspected from suspected) on suspected = sds_id
    ), in_sends as (
        -- If one segment of a send belongs to a delivered message, all do.
        select *, coalesce(own, min(own) over send) as own_or_send,
            coalesce(incomplete, min(incomplete) over send) as incomplete_or_send
        from known where delivered is null or own.family is not distinct from delivered.family
            and own.entire_message_hash is not distinct from delivered.entire_message_hash
        window send as (partition by {_CHANNEL}, coalesce(first_id, sds_id))
    ), beside as (
        -- A segment that never arrived belongs to the message of the segment after it.
        select *, coalesce(own_or_send, min(own_or_send) over pair) as whole,
            coalesce(incomplete_or_send, min(incomplete_or_send) over pair) as reported,
            coalesce(recorded, min(recorded) over pair) as planned, coalesce(segment, min(segment) over pair) as part
        from in_sends window pair as (partition by {_CHANNEL}, if(is_lost_segment, next.sds_id, sds_id))
    ), claimed as (
        select *, coalesce(whole, reported, planned) as unit,
            case when whole is not null then 'delivered' when reported is not null then 'incomplete'
                when planned is not null then 'recorded' when part is not null then 'waiting'
                when named is not null then 'named' end as source
        from beside
    ), units as (
        select {_CHANNEL}, source, coalesce(max(unit.message_key),
                if(source = 'named', min(sds_id),
                    concat_ws('-', lower(hex(max(segment.entire_message_hash))), min(sds_id)))) as message_key,
            coalesce(max(unit.sender_id), max(segment.sender_id), max(named.sender_id)) as sender_id,
            coalesce(max(unit.entire_message_hash), max(segment.entire_message_hash)) as entire_message_hash,
            max(unit.needed) as needed, max(segment.data_count) as data_count,
            -- Late is also what was rebuilt after its set had been reported incomplete. Not given up is what was named
            -- by the first message of a channel and came behind it.
            bool_or(unit.late) and not coalesce(bool_or(before_observation), false)
                or bool_or(coalesce(whole.entire_message_hash = reported.entire_message_hash
                and whole.sender_id is not distinct from reported.sender_id, false)) as late,
            coalesce(min(unit.first_seen), min(segment.first_seen), min(named.first_seen)) as first_seen,
            min(named.sent_since) as sent_since,
            min(unit.delivered_at) as delivered_at, max(unit.reason) as reason, max(unit.data_missing) as data_missing,
            array_sort(collect_set(sds_id)) as ids, count(segment) as received,
            flatten(collect_list(acknowledged_by)) as acknowledgements,
            flatten(collect_list(lost_by)) as lost_by, flatten(collect_list(logged_by)) as logged_by,
            bool_or(undecodable) as undecodable, max(store_error) as store_error,
            {", ".join(f"bool_or({name}) as {name}" for name in _FACTS if name != "present")},
            -- A store that has only received segments cannot provide a missing one.
            bool_or(present and segment is null) as present
        from claimed where source is not null
        group by {_CHANNEL}, source, unit.message_key, if(unit is null and part is not null,
            (part.sender_id, part.entire_message_hash, if(part.bare, sds_id, '')), null),
            if(source = 'named', sds_id, '')
    )
    -- Keep one message per key: an id is arbitrary text, so it can equal the key of another message.
    select * from (select *, row_number() over (partition by {_CHANNEL}, message_key
        order by source = 'named', source, ids) as place from units) where place = 1
"""
