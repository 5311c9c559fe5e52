"""Names what the configuration does not set: bounds and timings, which only tests and embedding programs change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_KEYS = {
    "alerts": "webhook_timeout_ms webhook_attempts most_open",
    "api": "max_body_bytes",
    "bridge": "gap_settle_ms gap_retry_ms",
    "channels.content_topics": "dialects dialect history_layout",
    "dashboard": "refresh_ms",
    "kafka.broker": "heap",
    "kafka.topics": "max_message_bytes",
    "messaging": "attempt_timeout_ms store_settle_ms max_in_flight max_records max_record_bytes max_record_age_ms"
    " max_pending_requests max_subscriptions store_query_interval_ms filter_confirmation",
    "node": "dialect timeout_ms max_body_bytes max_backoff_ms poll_interval_ms",
    "participant": "query_window_ms verify_chunk_chain delivery_error_event process_task_min_elapse_ms"
    " max_queued_bytes send_timeout_ms max_journal_entries max_journal_bytes",
    "pipeline": "settle_delay_ms max_clock_skew_ms channel_expiry_ms clock_interval_ms quarantine_raw_bytes",
    "quotas": "window_ms channel content_topic pattern pubsub_topic",
    "quotas.sender": "named_ids",
    "rate_limit": "counts approaching_share ephemeral_share",
    "sds": "retransmission repair_t_min_ms repair_t_max_ms"
    " clock_unit_ms possible_acks_threshold before_observation wire_family history_layout tracking sync_after_content"
    " sync_with_repairs repair_response_groups retrieve_frequency_ms retrieve_backoff retrieve_max_interval_ms"
    " wait_for_sent saturation_limit max_repair_requests_per_message max_repair_answers sweep_in_buf_interval_ms"
    " unproven_id_ms lamport_tolerance_ms lamport_max_step lamport_max_ahead_ms max_history_entries max_missing"
    " max_missing_per_sender max_missing_bytes max_refetches_per_sweep max_refetches_per_sender_and_sweep max_waiting"
    " max_waiting_bytes max_log_entries max_log_bytes max_repeats max_kept_bytes max_tracked max_participants"
    " max_finished_sends max_remembered max_remembered_bytes acknowledge_within_ms timeout_for_lost_messages_ms",
    "sds.filter_format": "family error_rate",
    "segmentation": "set_timeout_ms"
    " dialect accepted_dialects min_parity_segments max_buffered_bytes codec max_total_segments"
    " completed_memory_ms max_completed_sets max_open_sets max_open_sets_per_sender max_buffered_bytes_per_sender"
    " max_rebuild_attempts max_work_per_segment",
    "spark": "ui max_bytes_per_trigger",
    "store": "attempts first_wait_ms",
    "store.audit": "share after_ms within_ms",
    "store.nodes": "dialect timeout_ms max_body_bytes",
    "store.server": "refresh_ms",
}
FIXED = frozenset(f"{section}.{key}" for section, keys in _KEYS.items() for key in keys.split())
"""Section and key, without the numbers of list entries."""


def find_fixed(content: Any, path: str = "") -> Iterator[str]:
    """The keys of :data:`FIXED` that are in the content of a file or of the environment."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            inner = f"{path}.{key}".lstrip(".")
            if inner in FIXED:
                yield inner
            yield from find_fixed(value, inner)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from find_fixed(value, path)


def drop_fixed(content: Any, path: str = "") -> Any:
    """The values of a configuration without those that it does not set."""
    if isinstance(content, Mapping):
        names = {key: f"{path}.{key}".lstrip(".") for key in content}
        return {key: drop_fixed(content[key], name) for key, name in names.items() if name not in FIXED}
    return [drop_fixed(value, path) for value in content] if isinstance(content, list) else content
