"""Defines the figures that report, pages, alerts, metrics and commands share: one definition for each, as SQL.

Whoever asks adds the time or channel it asks for and the grouping. ``where`` is text of this package's own; values are
bound parameters in it.

=================  ===================================================================================================
``VERDICTS``       over ``delivery_status``: messages (known to exist), delivered, late (delivered after it was given
                   up), missing, unknown (not settled yet)
``LOSS``           of the same row: the share of settled messages that are missing; null where none is settled
``REPAIRED``       over ``reassembled_messages``: messages put together although some of their segments did not come
``records``        records that were read from Kafka, whatever became of them
``refused``        records among them that were quarantined and not used
=================  ===================================================================================================
"""
# ruff: noqa: S608 - the text that is put into queries comes from constants of this package

from __future__ import annotations

VERDICTS = """count(*) AS messages, count(*) FILTER (verdict = 'delivered') AS delivered,
    count(*) FILTER (verdict = 'delivered' AND cause = 'late') AS late,
    count(*) FILTER (verdict = 'missing') AS missing, count(*) FILTER (verdict = 'unknown') AS unknown"""
LOSS = "missing / nullif(missing + delivered, 0)"
REPAIRED = "count(*) FILTER (len(repaired) > 0)"
_PLACE = "kafka_topic, kafka_partition, kafka_offset"


def records(where: str = "true") -> str:
    """Records read: those with an envelope, and those that are none. A record may have several rows in quarantine."""
    return f"""((SELECT count(*) FROM envelopes WHERE {where})
        + (SELECT count(*) FROM (SELECT DISTINCT {_PLACE} FROM quarantine WHERE {where})
           ANTI JOIN (SELECT {_PLACE} FROM envelopes WHERE {where}) USING ({_PLACE})))"""


def refused(where: str = "true") -> str:
    """Records that were dropped: each once, however many reasons it has."""
    return (
        f"(SELECT count(*) FROM (SELECT DISTINCT {_PLACE} FROM quarantine WHERE disposition = 'dropped' AND {where}))"
    )
