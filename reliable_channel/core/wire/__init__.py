"""Converts between bytes and values for everything on the wire. Invalid bytes from outside never raise: they become a
:class:`Malformed`."""
