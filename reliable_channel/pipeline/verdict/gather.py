"""Gathering the evidence for verdicts, in Spark SQL over the tables (as views ``v_<table>``).

``units`` are the messages known to exist, each with the SDS ids known of it; ``EVIDENCE`` is one row per unit with what
every table says about those ids. Constant text: nothing from outside is put into it.
"""
# ruff: noqa: S608

from __future__ import annotations

_CHANNEL = "pubsub_topic, content_topic, channel_id"

SHARED = frozenset(
    {"u_delivered", "i_delivered", "u_queued", "i_queued", "u_incomplete", "u_waiting", "units", "unit_ids"}
)
"""Views that several others read: computed once. Put into each other as text they make a plan of hundreds of joins."""

VIEWS: tuple[tuple[str, str], ...] = (
    (
        "u_delivered",
        """select d.pubsub_topic, d.content_topic, d.channel_id, d.sender_id, d.entire_message_hash,
            concat_ws('-', lower(hex(d.entire_message_hash)),
                coalesce(cast(d.first_lamport_timestamp as string), d.sds_id)) as message_key,
            d.first_lamport_timestamp, coalesce(d.data_count, 1) as needed, d.late, d.first_seen,
            d.event_time as delivered_at,
            array_compact(coalesce(m.sds_ids, array(d.sds_id))) as ids
            from v_deliveries d left join v_messages m
            on d.segment_kind is null and m.kafka_topic = d.kafka_topic and m.kafka_partition = d.kafka_partition
               and m.kafka_offset = d.kafka_offset and m.entire_message_hash = d.entire_message_hash
            where d.row_kind = 'message'""",
    ),
    ("i_delivered", f"select {_CHANNEL}, explode(ids) as sds_id from u_delivered"),
    (
        "u_queued",
        # A channel tells of its send, and the node of every segment of it, milliseconds apart; more than a second later
        # the same payload is another send.
        f"""select q.* from (select {_CHANNEL}, sender_id, entire_message_hash,
                concat_ws('-', lower(hex(entire_message_hash)), min(sds_id)) as message_key,
                min(first_seen) as first_seen, collect_set(sds_id) as ids
                from (select *, sum(begins) over (partition by {_CHANNEL}, sender_id, entire_message_hash
                        order by first_seen, sds_id) as send
                    from (select *, if(first_seen - lag(first_seen) over (partition by {_CHANNEL}, sender_id,
                            entire_message_hash order by first_seen, sds_id) <= interval 1 second, 0, 1) as begins
                        from (select {_CHANNEL}, sender_id, entire_message_hash, sds_id, min(event_time) as first_seen
                            from v_sender_events
                            where event = 'queued' and sds_id is not null and entire_message_hash is not null
                            group by all)))
                group by {_CHANNEL}, sender_id, entire_message_hash, send) q
            where not exists (select 1 from i_delivered i where i.channel_id = q.channel_id
                and i.content_topic = q.content_topic and i.pubsub_topic = q.pubsub_topic
                and array_contains(q.ids, i.sds_id))""",
    ),
    ("i_queued", f"select {_CHANNEL}, message_key, explode(ids) as sds_id from u_queued"),
    (
        "u_incomplete",
        """select s.pubsub_topic, s.content_topic, s.channel_id, s.sender_id, s.entire_message_hash,
            concat_ws('-', lower(hex(s.entire_message_hash)), array_min(s.sds_ids)) as message_key,
            max(s.data_count) as needed, min(s.first_seen) as first_seen, max(s.reason) as reason,
            max(s.data_missing) as data_missing, flatten(collect_list(s.sds_ids)) as ids
            from v_incomplete_messages s group by all""",
    ),
    ("i_incomplete", f"select {_CHANNEL}, explode(ids) as sds_id from u_incomplete"),
    (
        "u_waiting",
        f"""select {_CHANNEL}, sender_id, entire_message_hash,
            concat_ws('-', lower(hex(entire_message_hash)), if(segment_kind = 'bare', min(sds_id), ''))
                as message_key,
            coalesce(max(data_count), 1) as needed, min(event_time) as first_seen, collect_set(sds_id) as ids
            from (select s.* from v_segments s where s.sds_kind = 'content'
              -- parity that came after its message was complete; in v0.1 data segments do not tell of it
              and not (s.segment_kind = 'parity' and exists (select 1 from u_delivered d
                where d.channel_id = s.channel_id and d.content_topic = s.content_topic
                and d.pubsub_topic = s.pubsub_topic and d.sender_id = s.sender_id
                and d.entire_message_hash = s.entire_message_hash
                and s.lamport_timestamp between d.first_lamport_timestamp and d.first_lamport_timestamp + 256))
              and not exists (select 1 from i_delivered i where i.channel_id = s.channel_id
                and i.content_topic = s.content_topic and i.pubsub_topic = s.pubsub_topic and i.sds_id = s.sds_id)
              and not exists (select 1 from i_incomplete i where i.channel_id = s.channel_id
                and i.content_topic = s.content_topic and i.pubsub_topic = s.pubsub_topic and i.sds_id = s.sds_id)
              and not exists (select 1 from i_queued i where i.channel_id = s.channel_id
                and i.content_topic = s.content_topic and i.pubsub_topic = s.pubsub_topic and i.sds_id = s.sds_id))
            group by {_CHANNEL}, sender_id, entire_message_hash, segment_kind = 'bare', segment_kind,
                if(segment_kind = 'bare', sds_id, '')""",
    ),
    (
        "claimed",
        f"""select * from i_delivered union select * from i_incomplete
            union select {_CHANNEL}, sds_id from i_queued
            union select {_CHANNEL}, explode(ids) as sds_id from u_waiting""",
    ),
    (
        "u_named",
        """select l.pubsub_topic, l.content_topic, l.channel_id, max(l.sender_id) as sender_id,
            l.sds_id as message_key, min(coalesce(l.missing_since, l.event_time)) as first_seen
            from v_lost_dependencies l left anti join claimed c on c.channel_id = l.channel_id
              and c.content_topic = l.content_topic and c.pubsub_topic = l.pubsub_topic and c.sds_id = l.sds_id
            group by l.pubsub_topic, l.content_topic, l.channel_id, l.sds_id""",
    ),
    (
        "units",
        f"""select 'delivered' as source, {_CHANNEL}, message_key, sender_id, entire_message_hash, needed, late,
                first_seen, delivered_at, cast(null as string) as reason, cast(null as array<int>) as data_missing, ids
            from u_delivered
            union all select 'incomplete', u.pubsub_topic, u.content_topic, u.channel_id, u.message_key, u.sender_id,
                u.entire_message_hash, u.needed, false, u.first_seen, null, u.reason, u.data_missing,
                array_union(u.ids, coalesce(q.ids, array()))
            from u_incomplete u left join u_queued q on q.pubsub_topic = u.pubsub_topic
                and q.content_topic = u.content_topic and q.channel_id = u.channel_id and q.sender_id = u.sender_id
                and q.entire_message_hash = u.entire_message_hash and arrays_overlap(q.ids, u.ids)
            union all select 'queued', q.pubsub_topic, q.content_topic, q.channel_id, q.message_key, q.sender_id,
                q.entire_message_hash, null, false, q.first_seen, null, null, null, q.ids
            from u_queued q left anti join i_incomplete i on i.channel_id = q.channel_id
                and i.content_topic = q.content_topic and i.pubsub_topic = q.pubsub_topic
                and array_contains(q.ids, i.sds_id)
            union all select 'waiting', {_CHANNEL}, message_key, sender_id, entire_message_hash, needed, false,
                first_seen, null, null, null, ids from u_waiting
            union all select 'named', {_CHANNEL}, message_key, sender_id, null, 1, false, first_seen, null, null, null,
                array(message_key) from u_named""",
    ),
    (
        "unit_ids",
        f"select {_CHANNEL}, message_key, source, first_seen, explode(ids) as sds_id from units",
    ),
    (
        "suspects",
        """select decode(raw, 'ISO-8859-1') as text from v_quarantine
            where raw is not null and stage in ('envelope', 'sds')""",
    ),
    (
        "facts",
        """select u.pubsub_topic, u.content_topic, u.channel_id, u.message_key,
            count(distinct s.sds_id) as received, max(s.data_count) as data_count
            from unit_ids u left join v_segments s on s.channel_id = u.channel_id
              and s.content_topic = u.content_topic and s.pubsub_topic = u.pubsub_topic and s.sds_id = u.sds_id
            group by all""",
    ),
    (
        "told",
        """select u.pubsub_topic, u.content_topic, u.channel_id, u.message_key,
            bool_or(e.event in ('sent', 'resent', 'not_stored')) as sent,
            bool_or(e.event = 'rate_limited') as held_back, bool_or(e.event in ('failed', 'dropped')) as given_up,
            bool_or(q.reason in ('undecryptable', 'plaintext_refused')) as undecryptable,
            bool_or(p.outcome = 'present') as present, bool_or(p.outcome = 'absent') as absent
            from unit_ids u join v_sender_events e on e.channel_id = u.channel_id
              and e.content_topic = u.content_topic and e.pubsub_topic = u.pubsub_topic and e.sds_id = u.sds_id
            left join v_quarantine q on q.message_hash = e.envelope_hash
            left join v_store_presence p on p.message_hash = e.envelope_hash
            where u.source <> 'delivered' group by all""",
    ),
    (
        "stored",
        """select u.pubsub_topic, u.content_topic, u.channel_id, u.message_key,
            bool_or(p.outcome = 'present') as present, bool_or(p.outcome = 'absent') as absent
            from unit_ids u join v_store_presence p on p.sds_id = u.sds_id and p.channel_id = u.channel_id
            where u.source <> 'delivered' group by all""",
    ),
    (
        "garbled",
        """select distinct u.pubsub_topic, u.content_topic, u.channel_id, u.message_key, true as undecodable
            from unit_ids u join suspects s on instr(s.text, concat(char(18), char(length(u.sds_id)), u.sds_id)) > 0
            where u.source <> 'delivered' and length(u.sds_id) < 128""",
    ),
    (
        "heard",
        f"""select {_CHANNEL}, message_key, collect_list(by) as acknowledged_by, true as heard from (
              select u.pubsub_topic, u.content_topic, u.channel_id, u.message_key, a.acknowledged_by as by,
                count(distinct a.sds_id) as acknowledged
              from unit_ids u join v_acks a on a.channel_id = u.channel_id and a.content_topic = u.content_topic
                and a.pubsub_topic = u.pubsub_topic and a.sds_id = u.sds_id group by all) a
            join (select {_CHANNEL}, message_key, coalesce(needed, 1) as needed from units)
              using ({_CHANNEL}, message_key)
            where acknowledged >= needed group by all""",
    ),
    (
        "open_gaps",
        """select name, max_by(from_time, ingest_time) as from_time, max_by(to_time, ingest_time) as to_time
            from v_source_gaps group by name having max_by(status, ingest_time) <> 'filled'""",
    ),
    (
        "named_before",
        """select u.pubsub_topic, u.content_topic, u.channel_id, u.message_key,
            bool_or(l.status = 'before_observation') as before_observation
            from unit_ids u join v_lost_dependencies l on l.channel_id = u.channel_id
              and l.content_topic = u.content_topic and l.pubsub_topic = u.pubsub_topic and l.sds_id = u.sds_id
            where u.source <> 'delivered' group by all""",
    ),
)

EVIDENCE = f"""
    select u.*, f.received, f.data_count, t.sent, t.held_back, t.given_up, t.undecryptable,
        coalesce(t.present, false) or coalesce(s.present, false) as present,
        coalesce(t.absent, false) or coalesce(s.absent, false) as absent,
        g.undecodable, h.heard, h.acknowledged_by, n.before_observation,
        exists (select 1 from open_gaps where u.first_seen >= from_time and u.first_seen <= to_time) as in_gap,
        (select max(event_time) from v_clock) as as_of
    from units u
    left join facts f using ({_CHANNEL}, message_key)
    left join told t using ({_CHANNEL}, message_key)
    left join stored s using ({_CHANNEL}, message_key)
    left join garbled g using ({_CHANNEL}, message_key)
    left join heard h using ({_CHANNEL}, message_key)
    left join named_before n using ({_CHANNEL}, message_key)
"""
