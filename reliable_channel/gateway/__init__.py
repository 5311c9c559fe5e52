"""Edges between the configuration, the tables and the network: transports and store clients built from the settings,
and the ``envelopes`` table as the source of a store server. Knows everything inside; nothing inside knows it."""
