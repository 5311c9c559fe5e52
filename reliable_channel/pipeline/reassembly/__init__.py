"""Segments to ``messages``: sets complete within a micro-batch, and those that wait in state."""
