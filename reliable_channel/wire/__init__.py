"""Bytes ↔ values for everything on the wire. Never raises on bytes from outside: returns a :class:`Malformed`."""
