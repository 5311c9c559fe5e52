"""The rows of the sample tables: what messages leave, and what others know and say about them."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from reliable_channel.core.sds import Evidence
from tests.support.sample_messages import MessageRows
from tests.support.sample_values import PUBSUB_TOPIC, STORE_NODES, Message, at, digest


class Story(MessageRows):
    """The rows of every table, and the messages behind them."""

    def acknowledge(
        self, name: str, by: str, after_s: float, evidence: str = "causal_history", carried_by: str | None = None
    ) -> None:
        """``by`` acknowledges every SDS message of ``name`` that is known, ``after_s`` seconds after it was seen."""
        message = self.messages[name]
        for part in message.parts:
            if not part.arrived and message.delivered_s is None:
                continue
            self.add(
                "acks",
                **self.channel(message),
                sds_id=part.sds_id,
                sender_id=message.sender,
                acknowledged_by=by,
                evidence=evidence,
                certainty=Evidence(evidence).certainty.value,
                evidence_sds_id=self.messages[carried_by].last.sds_id if carried_by else digest(name, by).hex()[:40],
                entire_message_hash=message.payload_hash,
                event_time=at(part.sent_s + 0.1 + after_s),
                latency_ms=round(after_s * 1000),
                copies=1 + (after_s > 30),
                kafka_partition=digest(message.content_topic)[0] % 3,
                kafka_offset=0,
            )

    def lose(self, name: str, needed_by: str, status: str, after_s: float = 300, *, hint: bool = True) -> None:
        """``needed_by`` names ``name``, of which nothing came: it is lost, arrived later, or is older than we are."""
        message, waiting = self.messages[name], self.messages[needed_by]
        since = at(waiting.parts[0].sent_s + 0.1)
        self.add(
            "lost_dependencies",
            **self.channel(waiting),
            sds_id=message.last.sds_id,
            sender_id=message.sender,
            retrieval_hint=message.last.envelope_hash if hint else None,
            status=status,
            needed_by=waiting.parts[0].sds_id,
            missing_since=since,
            event_time=since + dt.timedelta(seconds=after_s),
        )

    def refetch(
        self, name: str, needed_by: str, answers: Sequence[tuple[str, ...]], *, hint: bool = True, first_s: float = 10
    ) -> None:
        """Attempts to fetch ``name``: per attempt what each store node answered (present, absent, error or '')."""
        message, waiting = self.messages[name], self.messages[needed_by]
        for attempt, answered in enumerate(answers, 1):
            due = at(waiting.parts[0].sent_s + 0.1 + first_s * attempt)
            self.add(
                "refetch_requests",
                **self.channel(waiting),
                sds_id=message.last.sds_id,
                sender_id=message.sender,
                retrieval_hint=message.last.envelope_hash if hint else None,
                attempt=attempt,
                needed_by=waiting.parts[0].sds_id,
                event_time=due,
            )
            for node, outcome in zip(STORE_NODES, answered, strict=False):
                if outcome:
                    self.presence(
                        node, message, outcome, "refetch", due + dt.timedelta(seconds=1 + attempt), attempt=attempt
                    )

    def presence(
        self, node: str, message: Message, outcome: str, purpose: str, asked_at: dt.datetime, **more: Any
    ) -> None:
        self.add(
            "store_presence",
            **self.channel(message),
            node=node,
            message_hash=message.last.envelope_hash,
            sds_id=message.last.sds_id,
            outcome=outcome,
            purpose=purpose,
            detail="the node answered 503" if outcome == "error" else None,
            asked_at=asked_at,
            **more,
        )

    def say(self, name: str, *events: str, detail: str | None = None) -> None:
        """What the sender itself recorded about ``name``."""
        message = self.messages[name]
        for part in message.parts:
            for step, event in enumerate(events):
                self.add(
                    "sender_events",
                    **self.channel(message),
                    sender_id=message.sender,
                    sds_id=part.sds_id,
                    send_id=message.parts[0].sds_id,
                    entire_message_hash=message.payload_hash,
                    event=event,
                    envelope_hash=part.envelope_hash if event == "sent" else None,
                    detail=detail,
                    event_time=at(part.sent_s - 0.05 + 0.01 * step),
                )

    def refuse(
        self,
        stage: str,
        reason: str,
        at_s: float,
        raw: bytes | None,
        *,
        detail: str = "",
        content_topic: str | None = None,
        disposition: str = "dropped",
        message_hash: bytes | None = None,
    ) -> None:
        """A record that went to quarantine; it has a row in ``envelopes`` when it is an envelope at all."""
        place = self._place(content_topic or "unknown")
        if stage not in ("record", "envelope"):
            self.add(
                "envelopes",
                **place,
                record_time=at(at_s),
                event_time=at(at_s),
                ingest_time=at(at_s + 2),
                source="relay",
                pubsub_topic=PUBSUB_TOPIC,
                content_topic=content_topic,
                message_hash=message_hash,
                value=raw,
                value_bytes=len(raw or b""),
                ephemeral=False,
                kind="quarantined",
            )
        self.add(
            "quarantine",
            **place,
            record_time=at(at_s),
            event_time=at(at_s),
            ingest_time=at(at_s + 2),
            stage=stage,
            reason=reason,
            detail=detail,
            disposition=disposition,
            source="relay",
            pubsub_topic=PUBSUB_TOPIC if content_topic else None,
            content_topic=content_topic,
            message_hash=message_hash,
            raw=None if raw is None else raw[:4096],
            raw_bytes=None if raw is None else len(raw),
            raw_digest=digest(raw),
        )
