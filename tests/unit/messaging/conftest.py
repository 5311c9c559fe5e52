"""Fixtures of the Messaging API's tests; what they are made of stands in ``conftest_messaging``."""

from conftest_messaging import new_world, world

__all__ = ["new_world", "world"]
