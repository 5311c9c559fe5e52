"""Builds transports, store clients, participants and servers from the settings. It imports everything inside; nothing
inside imports it."""
