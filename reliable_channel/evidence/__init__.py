"""Connects participants and tables: collects evidence of bridges and senders, reads logs of nodes, refetches missing
envelopes, audits store nodes and serves the ``envelopes`` table as a store."""
