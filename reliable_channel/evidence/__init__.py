"""Connects participant and tables: evidence from bridges and senders, refetching, store audits, the store server's
source."""
