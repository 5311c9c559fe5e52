"""Looks records up by request, hash, content topic and subscription (MESSAGING-API, *Message Storage*, *Methods*)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reliable_channel.messaging.ledger import Ledger
from reliable_channel.messaging.records import MessageRecord
from reliable_channel.messaging.store import RecordKey
from reliable_channel.transport.waku_json import hash_from_hex


class RecordLookups:
    """The reading half of :class:`~reliable_channel.messaging.node.MessagingNode`."""

    _ledger: Ledger

    def get_by_request_id(self, request_id: str) -> MessageRecord | None:
        """The record of a send request, or None."""
        return self._ledger.records.by_request_id(request_id)

    def get_by_hash(self, message_hash: str) -> MessageRecord | None:
        """The record of a message hash (64 hex digits, ``0x`` optional), or None, also for text that is not a hash."""
        digest = hash_from_hex(message_hash)
        return None if digest is None else self._ledger.records.by_hash(digest)

    def get_by_content_topic(
        self, content_topic: str, skip: int = 0, take: int | None = None, *, since: int | None = None
    ) -> list[MessageRecord]:
        """The records of a content topic, in the order in which they were added; ``since`` (a ``change_seq``) leaves
        only those changed after it, in the order of their changes. Raises ``ValueError`` for negative numbers."""
        return list(self.records_of(self.find_keys(content_topic, None, skip, take, since)))

    def get_by_subscription_id(
        self, subscription_id: str, skip: int = 0, take: int | None = None, *, since: int | None = None
    ) -> list[MessageRecord]:
        """The records received under a subscription, as :meth:`get_by_content_topic`."""
        return list(self.records_of(self.find_keys(None, subscription_id, skip, take, since)))

    def find_keys(
        self,
        content_topic: str | None,
        subscription_id: str | None,
        skip: int = 0,
        take: int | None = None,
        since: int | None = None,
    ) -> list[RecordKey]:
        """Which records :meth:`get_by_content_topic` or :meth:`get_by_subscription_id` would return, in their order;
        :meth:`records_of` reads them a batch at a time."""
        return self._ledger.records.keys(content_topic, subscription_id, skip, take, since)

    def records_of(self, keys: Sequence[RecordKey]) -> Iterator[MessageRecord]:
        """The records of these keys; those that are gone meanwhile are left out."""
        return self._ledger.records.by_keys(keys)

    @property
    def record_cursor(self) -> int:
        """The ``change_seq`` of the latest change of any record."""
        return self._ledger.records.change_seq()
