"""Converts between bytes and values for everything on the wire. Bytes from outside never raise: they give a
:class:`Malformed`."""
