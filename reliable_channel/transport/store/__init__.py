"""Implements the Waku store (13/WAKU2-STORE v3 over REST): a query and its page, a client for several nodes, and a
server over an envelope source (docs/spec/store.md)."""
