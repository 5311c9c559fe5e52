"""Causal order per channel to ``acks``, ``deliveries``, ``repair_requests``; then ``delivered_messages``."""
