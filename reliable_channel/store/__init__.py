"""The Waku store (13/WAKU2-STORE v3 over REST): a query and its page, a client for several nodes, and a server that
answers from an envelope source of ours (waku-rest.md, protocol.md §8)."""
